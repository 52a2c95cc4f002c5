"""Sign-in: an operator's token for a session's cookie.

The store keeps which token a session is of, by the cookie's hash, for SESSION_S; so any server knows it, and what the
token may do, and whether it is still there, is looked up at each request. Posts carry a second secret, made from the
cookie, that only our own pages know.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256

from attrs import define, frozen
from starlette.requests import Request
from starlette.responses import Response

from fairq.errors import Forbidden, Unauthorized
from fairq.server.engine.app import App
from fairq.server.engine.net.auth import Identity
from fairq.server.web.admin.operators import Operators
from fairq.store import keys
from fairq.tokens import hash_token, token_id
from fairq.wire.terms import Role

SESSION_S = 8 * 3_600
COOKIE = "fairq_session"
LOOPBACK = ("127.0.0.1", "::1")
_DEV = "dev-operator"
_COOKIE_CHARS = 43


@frozen
class Session:
    """The signed-in operator, and the secret of this session's posts."""

    cookie: str
    identity: Identity
    csrf: str

    @property
    def may_change(self) -> bool:
        """True if pages offer changes: viewers only look."""
        return self.identity.role is Role.OPERATOR

    def check_post(self, given: object) -> None:
        """Check that a post comes from one of our pages. Raises: Forbidden."""
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self.csrf.encode()):
            raise Forbidden("this form is of another session: load the page again", field="csrf")


@define(eq=False)
class Sessions:
    """The sessions of all servers of a store."""

    operators: Operators

    @property
    def app(self) -> App:
        """The server."""
        return self.operators.app

    async def sign_in(self, token: str, address: str) -> Session:
        """Begin a session. Raises: Unauthorized, Forbidden, TooMany (wrong tokens), Unavailable."""
        identity = await self.operators.identify(token, address)
        cookie = secrets.token_urlsafe(32)
        of = f"{token_id(token)} {hash_token(token)}" if identity.token_id else token
        await self.app.store.connection.call("SET", keys.session_key(cookie), of, "EX", str(SESSION_S))
        return Session(cookie, identity, _csrf(cookie))

    async def find(self, request: Request) -> Session | None:
        """Return the session of a request; None without one, or when it has ended. Raises: Unavailable."""
        cookie = request.cookies.get(COOKIE, "")
        if len(cookie) != _COOKIE_CHARS:
            return None
        of = await self.app.store.connection.call("GET", keys.session_key(cookie))
        try:
            identity = of and await self._identity(of.decode())
        except (Unauthorized, Forbidden):  # the token was revoked, or has expired
            return None
        return Session(cookie, identity, _csrf(cookie)) if identity else None

    async def _identity(self, of: str) -> Identity:
        id, _, hashed = of.partition(" ")  # of a development token, which is no secret, there is no hash
        return await (self.app.auth.identify_hashed(id, hashed) if hashed else self.app.auth.identify(of))

    async def sign_out(self, session: Session) -> None:
        """End a session."""
        await self.app.store.connection.call("DEL", keys.session_key(session.cookie))

    async def sign_in_alone(self, request: Request) -> Session | None:
        """Begin a session without a token: only with --dev, and only for this machine."""
        host = request.client.host if request.client else ""
        return await self.sign_in(_DEV, host) if self.app.settings.dev and host in LOOPBACK else None


def _csrf(cookie: str) -> str:
    return hmac.new(cookie.encode(), b"fairq dashboard posts", sha256).hexdigest()


def give(response: Response, request: Request, session: Session) -> None:
    """Set the cookie of a session."""
    response.set_cookie(
        COOKIE,
        session.cookie,
        max_age=SESSION_S,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
