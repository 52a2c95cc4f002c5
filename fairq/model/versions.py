"""Versions of settings: digests of the values, as lua/base/versions.lua makes them.

A change that names the version it is based on cannot overwrite another operator's change.
"""

from __future__ import annotations

import re
from hashlib import sha1

from attrs import asdict

from fairq.model.limits import Limits
from fairq.model.queues import QueueSettings, stored_setting
from fairq.model.rules import matching

DIGITS = 12
VERSION = matching(
    re.compile(rf"[0-9a-f]{{{DIGITS}}}\Z"),
    f"{DIGITS} hexadecimal digits, as read",
    *("", "0" * 11, "0" * 13, "A" * 12, "g" * 12),
)


def _digest(*words: str | float) -> str:
    texts = (word if isinstance(word, str) else f"{word:.17g}" for word in words)
    return sha1(" ".join(texts).encode(), usedforsecurity=False).hexdigest()[:DIGITS]


def weight_version(weight: float) -> str:
    """Return the version of a tenant's weight."""
    return _digest(max(1, round(weight * 1000)))


def limits_version(limits: Limits) -> str:
    """Return the version of a tenant's limits, or of the common ones."""
    return _digest(*(word for name, value in asdict(limits).items() for word in (name, -1 if value is None else value)))


def hours_version(text: str) -> str:
    """Return the version of opening hours; empty: always open."""
    return _digest(text)


def settings_version(settings: QueueSettings) -> str:
    """Return the version of all settings of a queue."""
    values = sorted(asdict(settings).items())
    return _digest(*(word for name, value in values for word in (name, stored_setting(name, value))))
