"""One HTTP request with a known token: its fields, and how it is carried out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import trio
from attrs import define
from starlette.requests import Request
from starlette.responses import Response

from fairq.errors import BadRequest, FairqError
from fairq.io.scopes import open_plain_nursery
from fairq.model.checks import owner_of
from fairq.server.web.http.bodies import JSON, Gone, Inbox, read_object
from fairq.server.web.http.connections import HttpConnection
from fairq.server.web.http.fields import make_request, read_query
from fairq.server.web.http.problems import Problem
from fairq.server.web.http.stream import BoundedStream
from fairq.server.web.http.traffic import Bound
from fairq.wire.raw_payloads import RawPayload, Unreadable, decode_payload
from fairq.wire.terms import Role

CALL = "fairq.call"  # its name in the scope


@define(eq=False)
class Call:
    """A request of a token, with its whole body."""

    caller: HttpConnection
    inbox: Inbox
    stream: BoundedStream
    waits: Bound
    media_type: str
    body: bytes

    @classmethod
    def of(cls, request: Request) -> Call:
        """Return the call that a request makes."""
        call: Call = request.scope[CALL]
        return call

    def owner(self, id: str = "") -> Hashable:
        """Return the account that a request or a wait counts on: its tenant's or its token's; `id`: a task or batch."""
        return owner_of(id) or self.caller.identity.account

    def object(self) -> dict[str, Any]:
        """Read the body, a JSON object. Raises: Problem, BadFrame, TooLarge."""
        if self.media_type != JSON:
            raise Problem("wrong_type", f"send {JSON}, not {self.media_type!r:.80}")
        return self.caller.read(read_object, self.body)

    def given(self, frame: type[Any], request: Request, has_body: bool) -> dict[str, Any]:
        """Gather a frame's fields from path, query and body; HEAD waits for nothing.

        Raises: BadRequest if two say the same.
        """
        given: dict[str, Any] = dict(request.path_params)
        parts = [read_query(frame, request.query_params.multi_items())]
        if has_body and self.body:
            parts.append(self.object())
        elif self.body:
            raise BadRequest("this request has no body", field="body")
        for part in parts:
            if twice := given.keys() & part.keys():
                raise BadRequest(f"{min(twice)} is given twice", field=min(twice)[:80])
            given |= part
        if request.method == "HEAD":
            given.pop("wait", None)
        return given

    async def ask(self, frame: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request and carry it out; one that waits ends if its client goes. Raises: FairqError, Gone."""
        request = make_request(frame, given)
        if not getattr(request, "timeout_ms", 0):
            return await self.caller.ask(request)
        async with self.waiting(getattr(request, "id", "") or "".join(getattr(request, "ids", ())[:1])):
            return await self.caller.ask(request)

    @asynccontextmanager
    async def waiting(self, id: str = "") -> AsyncIterator[None]:
        """Count a wait while the context lasts, and cancel it when the client has gone. Raises: TooMany, Gone."""
        is_gone = False

        async def watch(scope: trio.CancelScope) -> None:
            nonlocal is_gone
            await self.inbox.wait_gone()
            is_gone = True
            scope.cancel()

        with self.waits.one(self.owner(id), is_token=self.caller.identity.role is Role.WORKER):
            async with open_plain_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                yield
                nursery.cancel_scope.cancel()
        if is_gone:
            raise Gone


@contextmanager
def one_of(many: str, one: str) -> Iterator[None]:
    """Name in errors what a request has one of, in place of its frame's list."""
    try:
        yield
    except FairqError as error:
        if error.field == many:
            error.field, error.message = one, error.message.replace(f"{many} must", f"{one} must")
        raise


def _show(row: Any) -> Any:
    """Return a row of a reply with its raw payload in place."""
    if type(row) is not dict or "payload_bytes" not in row:
        return row
    raw = row["payload_bytes"]
    text = raw.text if type(raw) is RawPayload else b""
    payload = decode_payload(text)
    shown = text.decode(errors="replace") if isinstance(payload, Unreadable) else orjson.Fragment(text)
    return {name: value for name, value in row.items() if name != "payload_bytes"} | {"payload": shown}


def answer(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with the body of a reply."""
    shown = {name: [_show(row) for row in it] if type(it) is list else it for name, it in _show(body).items()}
    return Response(orjson.dumps(shown), status, headers, JSON)
