"""Refused requests of this server: counted by code for /metrics, and logged with the id that the client gets.

The id of a websocket's request is `<session>/<ref>`: the session that its `welcome` named, and the request's number.
That of HTTP is in the header X-Request-Id. Neither the error's message nor any field's name is logged: both may quote
what the client sent.
"""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from fairq.server.rated_log import RatedLog

MAX_CODES = 100  # that are counted apart


@define(eq=False)
class Refusals:
    """Counts refusals by code, and logs them."""

    counts: Counter[str] = field(factory=Counter, init=False)
    log: RatedLog = field(factory=RatedLog, init=False)

    def note(self, code: str, request: str, **fields: str) -> None:
        """Log and count a refused request; empty fields are left out."""
        self.counts[code if code in self.counts or len(self.counts) < MAX_CODES else "other"] += 1
        given = {name: value for name, value in fields.items() if value}
        self.log.info("refused", request=request, code=code, **given)
