"""Runs Celery on fairq: `import fairq.celery` makes `fairq://` a broker URL; `tenant` names the sender's tenant.

A project with nothing but settings names the transport itself: `broker_transport = "fairq.celery:Transport"`.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from fairq.celery.tenants import tenant
from fairq.celery.transport import Transport

__all__ = ["Transport", "tenant"]

TRANSPORT_ALIASES["fairq"] = "fairq.celery:Transport"
