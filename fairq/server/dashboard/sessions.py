"""Sign-in: an operator's token for a session's cookie.

The store keeps which token a session is of, by the cookie's hash, for SESSION_S; so any server knows it, and what the
token may do, and whether it is still there, is looked up at each request. Posts carry a second secret, made from the
cookie, that only our own pages know.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256

import trio
from attrs import define, field, frozen
from starlette.requests import Request
from starlette.responses import Response

from fairq.errors import Forbidden, TooMany, Unauthorized
from fairq.server.app import App
from fairq.server.net.admission import Rate
from fairq.server.net.auth import Identity
from fairq.store import keys
from fairq.tokens import hash_token, token_id
from fairq.wire.terms import Role

SESSION_S = 8 * 3_600
COOKIE = "fairq_session"
LOOPBACK = ("127.0.0.1", "::1")
_DEV = "dev-operator"
_COOKIE_CHARS = 43
_TRIES_PER_S, _TRIES = 1.0, 20.0  # of wrong tokens, from all addresses together


@frozen
class Session:
    """Who is signed in, and the secret of this session's posts."""

    cookie: str
    identity: Identity
    csrf: str

    def check_post(self, given: object) -> None:
        """Check that a post comes from one of our pages. Raises: Forbidden."""
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self.csrf.encode()):
            raise Forbidden("this form is of another session: load the page again", field="csrf")


@define(eq=False)
class Sessions:
    """The sessions of all servers of a store."""

    app: App
    _wrong: Rate = field(factory=lambda: Rate(_TRIES_PER_S, _TRIES), init=False)

    async def sign_in(self, token: str) -> Session:
        """Begin a session. Raises: Unauthorized, Forbidden, TooMany, Unavailable."""
        if not self._wrong.take_now(0, trio.current_time()):
            raise TooMany("too many wrong tokens: try again in some seconds", retry_in_ms=1_000)
        try:
            identity = _operator(await self.app.auth.identify(token))
        except (Unauthorized, Forbidden):
            self._wrong.take(1, trio.current_time())
            raise
        cookie = secrets.token_urlsafe(32)
        of = f"{token_id(token)} {hash_token(token)}" if identity.token_id else _DEV
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
        if of == _DEV:
            return await self.app.auth.identify(_DEV)
        id, hashed = of.split(" ")
        return _operator(await self.app.auth.identify_hashed(id, hashed))

    async def sign_out(self, session: Session) -> None:
        """End a session."""
        await self.app.store.connection.call("DEL", keys.session_key(session.cookie))

    async def sign_in_alone(self, request: Request) -> Session | None:
        """Begin a session without a token: only with --dev, and only for this machine."""
        host = request.client.host if request.client else ""
        return await self.sign_in(_DEV) if self.app.settings.dev and host in LOOPBACK else None


def _operator(identity: Identity) -> Identity:
    if identity.role is not Role.OPERATOR:
        raise Forbidden(f"this is a {identity.role.value}'s token; the dashboard is for operators", field="token")
    return identity


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
