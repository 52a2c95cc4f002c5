"""What this server refuses: counted by code for /metrics, and logged under the id that the client knows too.

The id of a websocket's request is `<session>/<ref>`: the session that its `welcome` named, and the request's number.
That of HTTP is in the header X-Request-Id. Neither the error's message nor any field's name is logged: both may quote
what the client sent.
"""

from __future__ import annotations

from collections import Counter

import structlog
import trio
from attrs import define, field

from fairq.model.rates import Rate

log = structlog.get_logger("fairq.server")

LINES_PER_S, LINES_AT_ONCE = 5.0, 50.0  # a tenant that is refused all the time must not fill the disk
MAX_CODES = 100  # that are counted apart


@define(eq=False)
class Refusals:
    """Counts refusals by code and logs them; beyond the rate they are only counted, in the next line."""

    counts: Counter[str] = field(factory=Counter, init=False)
    _rate: Rate = field(factory=lambda: Rate(LINES_PER_S, LINES_AT_ONCE), init=False)
    _unlogged: int = field(default=0, init=False)

    def note(self, code: str, request: str, **fields: str) -> None:
        """Note that a request was refused; empty fields are left out."""
        self.counts[code if code in self.counts or len(self.counts) < MAX_CODES else "other"] += 1
        if not self._rate.take_one(trio.current_time()):
            self._unlogged += 1
            return
        more = {"unlogged": self._unlogged} if self._unlogged else {}
        self._unlogged = 0
        told = {name: value for name, value in fields.items() if value}
        log.info("refused", request=request, code=code, **told, **more)
