"""The log of events that tenants and strangers cause: lines have a rate limit, so that they cannot fill the disk."""

from __future__ import annotations

from typing import Any

import structlog
import trio
from attrs import define, field

from fairq.model.rates import Rate

log = structlog.get_logger("fairq.server")

LINES_PER_S, LINES_AT_ONCE = 5.0, 50.0


@define(eq=False)
class RatedLog:
    """Logs lines of one kind; beyond the rate they are only counted, in the next line."""

    _rate: Rate = field(factory=lambda: Rate(LINES_PER_S, LINES_AT_ONCE), init=False)
    _unlogged: int = field(default=0, init=False)

    def info(self, event: str, **fields: Any) -> None:
        """Log or count a line."""
        if not self._rate.take_one(trio.current_time()):
            self._unlogged += 1
            return
        more = {"unlogged": self._unlogged} if self._unlogged else {}
        self._unlogged = 0
        log.info(event, **fields, **more)
