"""The steps before each endpoint: tokens, bounds and bodies; and after it: errors as answers.

Hypercorn passes the parts of a body on as they come and stops reading while they are not taken. So every request's body
is read to its end, or for LINGER_S after a refusal: else an answer could not be sent, or its client would not read it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import structlog
import trio
from attrs import define, field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairq.errors import BadRequest, FairqError, TooLarge, Unauthorized
from fairq.io.scopes import background
from fairq.io.turns import Gate
from fairq.server.engine.app import App
from fairq.server.engine.net.auth import bearer_token
from fairq.server.engine.net.origin import ORIGIN, Origin
from fairq.server.engine.net.refusals import Refusals
from fairq.server.web.http import request_ids
from fairq.server.web.http.bodies import Gone, Inbox, inflate
from fairq.server.web.http.call import CALL, Call
from fairq.server.web.http.connections import Callers, HttpConnection
from fairq.server.web.http.problems import Problem, answer_of
from fairq.server.web.http.request_ids import Note
from fairq.server.web.http.stream import BoundedStream
from fairq.server.web.http.traffic import Bound, bound
from fairq.tokens import hash_token
from fairq.wire.terms import Role

HEADERS = (
    "Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "If-Match", "Last-Event-ID", "Origin",
    "Traceparent", "X-Request-Id",
)  # fmt: skip
_ONCE = {name.lower().encode(): name for name in HEADERS}
INBOX, STREAM = "fairq.inbox", "fairq.stream"  # their names in the scope
log = structlog.get_logger("fairq.server")


@define(eq=False)
class Answering:
    """The outermost part of one connection: reads what its inner parts leave unread, and answers errors."""

    inner: ASGIApp
    stream: BoundedStream
    check: Callable[[Headers], None]  # raises if requests with these headers are refused
    refusals: Refusals
    strangers: Gate  # requests of unknown tokens, and their bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        inbox = Inbox(receive, self.strangers)
        scope.update({INBOX: inbox, STREAM: self.stream})
        has_begun = False
        headers = Headers(scope=scope)
        note = request_ids.begin(scope, headers)

        async def answer(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                own = (request_ids.HEADER.encode(), note.id.encode())
                message = {**message, "headers": [*message["headers"], own]}
                if message["status"] >= 400:
                    self._note_refusal(scope, note)
            elif not message.get("more_body", False) and not inbox.is_over:
                await send({**message, "more_body": True})
                await inbox.drain()
                async with background(inbox.wait_gone):  # what is still sent would fill the way of the end's notice
                    await send({"type": "http.response.body"})
                return
            await send(message)

        try:
            lengths = {"content-length", "transfer-encoding"}.intersection(headers)
            if not lengths:
                await inbox.chunk()
            if len(lengths) > 1:  # a proxy may have read the other one
                message = "Content-Length and Transfer-Encoding are both given"
                raise Problem("bad_request", message, headers={"Connection": "close"})
            _check_once(headers)
            self.check(headers)
            await self.inner(scope, receive, answer)
        except Gone:
            pass
        except Exception as error:
            if not isinstance(error, FairqError):
                log.exception("request failed", request=note.id, **asked_of(scope))
            if has_begun:
                await trio.aclose_forcefully(self.stream.stream)
            else:
                known = error if isinstance(error, FairqError) else request_ids.failure_of(scope)
                await answer_of(known)(scope, receive, answer)

    def _note_refusal(self, scope: Scope, note: Note) -> None:
        call = scope.get(CALL)
        who = call.caller.identity if call else None
        of = {"role": who.role.value, "tenant": who.tenant} if who else {}
        self.refusals.note(note.code or "other", note.id, **asked_of(scope), **of)


def _check_once(headers: Headers) -> None:
    """Raises: BadRequest if a header that is read here has two values: a proxy may have read the other one."""
    first: dict[bytes, bytes] = {}
    for name, value in headers.raw:
        if name in _ONCE and first.setdefault(name, value) != value:
            raise BadRequest(f"the header {_ONCE[name]} has two values", field=_ONCE[name])


def asked_of(scope: Scope) -> dict[str, str]:
    """Return what the log may say of a request: its path, quoted, but not its query, headers or body."""
    path = bytes(scope.get("raw_path") or b"")[:200].decode("ascii", "replace")
    host, port, *_ = scope.get("client") or ("unknown", 0)
    return {"method": scope["method"], "path": path, "remote": f"{host}:{port}"}


@define(eq=False)
class Guard:
    """Admits requests of known tokens within the bounds, with their whole bodies."""

    api: ASGIApp
    app: App
    callers: Callers
    is_guarded: Callable[[str], bool] = lambda path: path.startswith("/v1/")  # whether a path needs a token
    requests: Bound = field(factory=lambda: bound("requests under way", "REQUESTS"))
    waits: Bound = field(factory=lambda: bound("requests that wait", "WAITING"))
    bodies: Bound = field(factory=lambda: bound("bytes of bodies", "BODIES_BYTES"), init=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer why not. Raises: Gone."""
        try:
            if self.is_guarded(scope["path"]) and scope["method"] != "OPTIONS":
                await self._pass(scope, receive, send)
            else:
                await scope[INBOX].turns.enter()
                await self.api(scope, receive, send)
        except FairqError as error:
            await answer_of(error)(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, inbox, stream = Headers(scope=scope), scope[INBOX], scope[STREAM]
        limit = self.app.settings.message_bytes
        address = (scope.get("client") or ("unknown", 0))[0]
        ORIGIN.set(Origin(address, "http"))
        caller = await self._find(headers, address, inbox.turns)
        inbox.turns = caller.turns or inbox.turns
        with caller.in_use():
            call = Call(caller, inbox, stream, self.waits, _media_type(headers), b"")
            owner, is_token = call.owner(), caller.identity.role is not Role.TENANT
            length = headers.get("content-length", "0")
            if len(length) > 10 or int(length) > limit:
                raise TooLarge(f"the body has more than {limit} bytes", field="body")
            with self.requests.one(owner, is_token=is_token), self.bodies.some(owner, is_token=is_token) as hold:
                body = await inbox.read(limit, hold)
                await caller.wait_turn(len(body))
                if encoding := headers.get("content-encoding", "").lower():
                    body = await self._inflate(caller, body, encoding, hold)
                call.body = body
                del body
                scope[CALL] = call
                await self.api(scope, receive, send)

    async def _find(self, headers: Headers, address: str, strangers: Gate) -> HttpConnection:
        """Return the caller of a request; a token not used lately is a stranger. Raises: as `Callers.find`."""
        with suppress(Unauthorized):
            if known := self.callers.known(hash_token(bearer_token(headers.raw))):
                return known
        await strangers.enter()
        return await self.callers.find(bearer_token(headers.raw), address)

    async def _inflate(self, caller: HttpConnection, body: bytes, encoding: str, hold: Callable[[int], None]) -> bytes:
        made = 0

        def held(more: int) -> None:
            nonlocal made
            made += more
            hold(more)

        try:
            return await inflate(body, encoding, self.app.settings.message_bytes, held)
        finally:  # the bytes that were made count as received, also those of a refused body: inflating costs as much
            await caller.wait_turn(made)


def _media_type(headers: Headers) -> str:
    """Return the type of a body without its parameters; of those only a charset of UTF-8 is known. Raises: Problem."""
    kind, _, parameters = headers.get("content-type", "").partition(";")
    if parameters.strip().lower().replace('"', "") not in ("", "charset=utf-8"):
        raise Problem("wrong_type", f"the body must be UTF-8, not {parameters.strip()!r:.80}")
    return kind.strip().lower()
