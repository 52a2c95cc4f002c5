"""Reads fairq's settings from Django's."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

NAMES = ("APP", "TOKEN", "URL", "WORKER_TOKEN")


def setting(name: str) -> Any:
    """Return a value of FAIRQ in the settings, None if it has none. Raises: ImproperlyConfigured."""
    found: dict[str, Any] = getattr(settings, "FAIRQ", {})
    if unknown := sorted(found.keys() - set(NAMES)):
        raise ImproperlyConfigured(f"the setting FAIRQ has {', '.join(unknown)}: it may have {', '.join(NAMES)}")
    return found.get(name)
