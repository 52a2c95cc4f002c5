"""A tenant's feed as server-sent events, each with its id: Last-Event-ID goes on where a stream ended."""

from __future__ import annotations

from typing import Any

import orjson
import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairq.errors import BadRequest, FairqError
from fairq.model.events import EVENT_ID
from fairq.server.web.http.bodies import JSON, Gone
from fairq.server.web.http.bounds import KEEP_ALIVE_S, STREAM_S
from fairq.server.web.http.call import Call, answer
from fairq.server.web.http.fields import make_request
from fairq.server.web.http.problems import body_of
from fairq.wire import messages as wire

EVENT_STREAM = "text/event-stream"


async def events(request: Request) -> Response:
    """Stream events, or with `Accept: application/json` return a page of them."""
    call = Call.of(request)
    given = call.given(wire.Events, request, has_body=False)
    last = request.headers.get("last-event-id")
    if last is not None:
        if not (last.isascii() and last.isdigit() and len(last) < 17):
            raise BadRequest("Last-Event-ID must be the id of an event", field="Last-Event-ID")
        EVENT_ID.check(given.get("after", 0), "after")
        given["after"] = int(last)
    if request.method == "HEAD" or request.headers.get("accept", "").startswith(JSON):
        return answer(await call.ask(wire.Events, given))
    if "wait" in given:
        raise BadRequest("a stream always waits: wait is for a page of events", field="wait")
    page = await call.ask(wire.Events, given)  # a refusal is an answer, not a stream
    return EventStream(call, given, page)


def _lines(page: dict[str, Any]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %b\ndata: %b\n\n" % (row["id"], row["event"].encode(), orjson.dumps(row))
        for row in page["events"]
    )


class EventStream(Response):
    """The events of a feed as they come, until the client goes, the server stops or STREAM_S have passed."""

    media_type = EVENT_STREAM

    def __init__(self, call: Call, given: dict[str, Any], page: dict[str, Any]) -> None:
        super().__init__(headers={"Cache-Control": "no-store"}, media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self._call, self._given, self._page = call, given, page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            async with self._call.waiting():
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                with trio.move_on_after(STREAM_S):
                    await self._follow(send)
        except Gone:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _follow(self, send: Send) -> None:
        page, wait = self._page, {"wait": KEEP_ALIVE_S}
        while not self._call.stream.is_broken:
            chunk = _lines(page) or b": nothing new\n\n"
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if page["events"]:
                self._given["after"] = page["events"][-1]["id"]
            try:
                page = await self._call.caller.ask(make_request(wire.Events, self._given | wait))
            except FairqError as error:
                chunk = b"event: error\ndata: %b\n\n" % orjson.dumps(body_of(error))
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                return
