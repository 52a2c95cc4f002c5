"""A clock that goes on while the machine is suspended. On Linux those of event loops do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial


def awake_clock() -> Callable[[], float]:
    """Return the clock, in seconds; one that stands still like the others where the system has no better."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot is None else partial(time.clock_gettime, boot)
