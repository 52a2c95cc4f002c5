"""Tells for how long the machine was suspended. On Linux the clocks of event loops leave that time out."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it


def slept_s() -> float:
    """Return for how long in all the machine was suspended; always the same where the system does not tell."""
    return 0.0 if _CLOCK is None else time.clock_gettime(_CLOCK) - time.monotonic()
