"""fairq for Django: `fairq.django` in INSTALLED_APPS, and what its programs call.

The handlers' module registers them with a `fairq.Worker`; `manage.py fairq_worker` runs it.
"""

from __future__ import annotations

from fairq.django.connections import install
from fairq.django.enqueueing import client, enqueue_by_outbox, enqueue_on_commit

__all__ = ["client", "enqueue_by_outbox", "enqueue_on_commit", "install"]
