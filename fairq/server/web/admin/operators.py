"""Operators' requests over HTTP: how pages and paths of the operators' listener carry out frames.

A frame is carried out as that of a websocket with the same token: role, queues, limits and audit are the same, and it
is refused once the token is revoked.
"""

from __future__ import annotations

from typing import Any

from attrs import define

from fairq.server.engine.net.auth import Identity
from fairq.server.engine.net.origin import ORIGIN, Origin
from fairq.server.web.http.connections import Callers
from fairq.wire.terms import Role

MAX_TOKENS = 64  # of operators that ask at once


@define(eq=False)
class Operators(Callers):
    """The operators who use pages and paths."""

    roles: frozenset[Role] = frozenset({Role.OPERATOR, Role.VIEWER})
    others: str = "this listener is for tokens of operators and viewers"
    most: int | None = MAX_TOKENS
    limits_wrong_tokens: bool = True

    async def ask(self, identity: Identity, origin: Origin, request: Any) -> dict[str, Any]:
        """Carry out a frame for an operator who has signed in; returns the reply's body.

        Raises: FairqError; Unauthorized once the token is revoked.
        """
        key = f"identity {identity.token_id or identity.label}"
        caller = self.known(key)
        if caller is None:
            caller = await self.open(key, await self.app.auth.renew(identity), origin.address)
        token = ORIGIN.set(origin)
        try:
            with caller.in_use():
                return await caller.ask(request)
        finally:
            ORIGIN.reset(token)
