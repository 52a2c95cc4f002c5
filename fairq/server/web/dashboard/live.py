"""Pages as streams: the changing part of a page, sent at each change, and rendered once for all its readers.

At most MAX_STREAMS streams are open, MAX_OWN_STREAMS of one token, each for STREAM_S at most; a page is gathered when
it is opened and then at most every STEP_S, and at most MAX_GATHERING at a time, so that a hundred tabs cost what a few
do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

import structlog
import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairq.errors import FairqError, Unauthorized
from fairq.io.scopes import open_plain_nursery
from fairq.server.web.http.bodies import Inbox
from fairq.server.web.http.guard import INBOX, STREAM, asked_of

log = structlog.get_logger("fairq.server")

STEP_S, STREAM_S, QUIET_S, CHECK_S = 1.0, 3_600.0, 15.0, 5.0
KEPT_S = 0.9 * STEP_S  # a rendering
ANSWER_S = 3.0  # for which the store may think
_LINE_END = re.compile("\r\n|\r|\n")  # all three end a line of a stream: an error's text may have any of them
MAX_STREAMS, MAX_OWN_STREAMS, MAX_GATHERING = 256, 64, 4
_END = {"type": "http.response.body", "body": b"", "more_body": False}


def _message(text: str, event: str = "") -> bytes:
    lines = [f"event: {event}"] if event else []
    return "\n".join([*lines, *(f"data: {line}" for line in _LINE_END.split(text)), "", ""]).encode()


class PageStream(Response):
    """The changing part of a page, as server-sent events, until the reader goes, signs out, or the server stops."""

    media_type = "text/event-stream"

    def __init__(
        self, render: Callable[[], Awaitable[str]], check: Callable[[], Awaitable[None]], is_over: Callable[[], bool]
    ) -> None:
        super().__init__(media_type=self.media_type)
        del self.headers["content-length"]
        self._render, self._check, self._is_over = render, check, is_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, or to HEAD its headers only."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send(_END)
            return
        inbox: Inbox = scope[INBOX]

        async def leave(
            follow: trio.CancelScope,
        ) -> None:  # notices a closed page at once
            await inbox.wait_gone()
            follow.cancel()

        async with open_plain_nursery() as nursery:
            nursery.start_soon(leave, nursery.cancel_scope)
            with trio.move_on_after(STREAM_S):
                await self._follow(scope, send)
            nursery.cancel_scope.cancel()
        if not inbox.is_gone:
            await send(_END)

    async def _follow(self, scope: Scope, send: Send) -> None:
        stream, last, sent_at, checked_at = scope[STREAM], "", trio.current_time(), trio.current_time()
        while not stream.is_broken and not self._is_over():
            until = trio.current_time() + STEP_S
            try:
                if trio.current_time() - checked_at > CHECK_S:
                    await self._check()
                    checked_at = trio.current_time()
                with trio.fail_after(ANSWER_S):
                    text = _message(html := await self._render())
            except Unauthorized:
                await send({"type": "http.response.body", "body": _message("signed out", "left"), "more_body": True})
                return
            except trio.TooSlowError:
                text, html = _message(f"the store has not answered for {ANSWER_S:g} s", "trouble"), ""
            except FairqError as error:
                text, html = _message(error.message, "trouble"), ""
            except Exception:
                log.exception("page failed", **asked_of(scope))
                text, html = _message("internal error; see the server's log", "trouble"), ""
            if html != last or not html:
                await send({"type": "http.response.body", "body": text, "more_body": True})
                last, sent_at = html, trio.current_time()
            elif trio.current_time() - sent_at > QUIET_S:
                await send({"type": "http.response.body", "body": b": nothing new\n\n", "more_body": True})
                sent_at = trio.current_time()
            await trio.sleep_until(until)
