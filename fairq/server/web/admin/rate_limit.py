"""The rate limit of the operators' listener: a flood of requests takes little time from the tenants.

An address has a rate, and all together have one. A request beyond it is answered after PENALTY_S, as `too_many`: so a
connection gets one answer a second. Probes of health count only for their own address: a flood from elsewhere does not
make a server look dead.
"""

from __future__ import annotations

import trio
from attrs import define, field
from starlette.types import ASGIApp, Receive, Scope, Send

from fairq.errors import TooMany
from fairq.model.rates import Rate, Rates
from fairq.server.engine.net.admission import block_of
from fairq.server.web.http.problems import answer_of

PER_ADDRESS, ADDRESS_BURST = 50.0, 500.0  # requests a second, and at once: a hundred tabs open
IN_ALL, BURST = 200.0, 1_000.0
PENALTY_S = 1.0
PROBES = ("/livez", "/readyz")


@define(eq=False)
class RateLimit:
    """Stands before the application of the operators' listener."""

    inner: ASGIApp
    _whole: Rate = field(factory=lambda: Rate(IN_ALL, BURST), init=False)
    _rates: Rates = field(factory=lambda: Rates(PER_ADDRESS, ADDRESS_BURST), init=False)  # of addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or say that there were too many."""
        address = block_of((scope.get("client") or ("unknown", 0))[0])
        if self._takes(address, scope["path"] in PROBES):
            await self.inner(scope, receive, send)
            return
        await trio.sleep(PENALTY_S)
        error = TooMany("too many requests to the operators' listener", retry_in_ms=round(PENALTY_S * 1000))
        await answer_of(error)(scope, receive, send)

    def _takes(self, address: str, is_probe: bool) -> bool:
        now = trio.current_time()
        return self._rates.of(address, now).take_one(now) and (is_probe or self._whole.take_one(now))
