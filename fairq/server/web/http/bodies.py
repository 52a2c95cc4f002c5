"""Request bodies: read within their bounds, inflated within the same, and parsed as strictly as frames."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import trio
from attrs import define, field

from fairq.errors import BadFrame, BadRequest, TooLarge
from fairq.io.turns import Gate
from fairq.model.checks import MAX_BATCH
from fairq.server.web.http.bounds import BODY_S, CHUNK_S, FREE_PARTS, LINGER_S
from fairq.server.web.http.problems import Problem
from fairq.wire.strict_json import BRACKET_COST, MAX_COST, check_cost, parse

JSON, NDJSON = "application/json", "application/x-ndjson"
_PIECE_BYTES = 65_536  # inflated at once
MAX_LINES = MAX_COST // BRACKET_COST  # of a body, empty ones too: a line costs as much as an object
_GZIP = 16 + zlib.MAX_WBITS

Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Gone(Exception):
    """The client has closed its connection."""


@define(eq=False)
class Inbox:
    """The received parts of one request; `is_over` when its body is complete.

    A part of one byte costs as much as one of 64 KiB: after FREE_PARTS each takes one of `turns`.
    """

    receive: Receive
    turns: Gate
    _parts: int = field(default=0, init=False)
    is_over: bool = field(default=False, init=False)
    is_gone: bool = field(default=False, init=False)

    async def chunk(self) -> bytes:
        """Wait for a part of the body; empty at the end. Raises: Gone."""
        while not self.is_over:
            self._parts += 1
            if self._parts > FREE_PARTS:
                await self.turns.enter()
            message = await self.receive()
            self.is_over = message["type"] == "http.disconnect" or not message.get("more_body", False)
            if message["type"] == "http.disconnect":
                self.is_gone = True
                raise Gone
            if message["body"]:
                return bytes(message["body"])
        return b""

    async def read(self, limit: int, held: Callable[[int], None]) -> bytes:
        """Read the body; `held` is called with the number of further bytes. Raises: TooLarge, Problem, Gone."""
        body = bytearray()
        with trio.move_on_after(BODY_S) as whole:
            while True:
                with trio.move_on_after(CHUNK_S) as part:
                    more = await self.chunk()
                if part.cancelled_caught:
                    break
                if not more:
                    return bytes(body)
                held(len(more))
                body += more
                if len(body) > limit:
                    raise TooLarge(f"the body has more than {limit} bytes", field="body")
        took = BODY_S if whole.cancelled_caught else CHUNK_S
        raise Problem("not_in_time", f"the body did not arrive: nothing came for {CHUNK_S:g} s, or it took {took:g} s")

    async def drain(self) -> None:
        """Read what is left of the body, and drop it; for LINGER_S at most."""
        with trio.move_on_after(LINGER_S):
            try:
                while await self.chunk():
                    pass
            except Gone:
                pass

    async def wait_gone(self) -> None:
        """Wait until the client closes its connection."""
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True


async def inflate(body: bytes, encoding: str, limit: int, held: Callable[[int], None]) -> bytes:
    """Undo a body's content encoding; `held` gets the size of each piece. Raises: Problem, BadRequest, TooLarge."""
    if encoding in ("", "identity"):
        return body
    if encoding != "gzip":
        raise Problem("wrong_type", f"content encoding {encoding!r:.80} is not known; use gzip, or none")
    inflater, whole, rest = zlib.decompressobj(_GZIP), bytearray(), body
    try:
        while rest or not inflater.eof:
            piece = inflater.decompress(rest, _PIECE_BYTES)
            held(len(piece))  # before others make theirs: all bodies grow at once
            whole += piece
            if len(whole) > limit:
                raise TooLarge(f"the body has more than {limit} bytes when inflated", field="body")
            rest = inflater.unconsumed_tail
            if inflater.eof or not (piece or rest):
                break
            await trio.lowlevel.checkpoint()
    except zlib.error as error:
        raise BadRequest(f"the body is not gzip: {error}", field="body") from None
    if not inflater.eof or inflater.unused_data:
        raise BadRequest("the body is not one whole gzip member", field="body")
    return bytes(whole)


def text_of(body: bytes) -> str:
    """Return a body's text. Raises: BadFrame, TooLarge."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise BadFrame(f"the body is not UTF-8: byte {error.start}") from None
    check_cost(text)
    return text


def read_object(body: bytes) -> dict[str, Any]:
    """Read a body that is one JSON object. Raises: BadFrame, TooLarge."""
    try:
        return parse(text_of(body))
    except BadFrame as error:
        message = error.message.replace("a frame must be one", "the body must be one")
        raise BadFrame(message, field="body") from None


def read_lines(body: bytes) -> Iterator[dict[str, Any]]:
    """Read a body of JSON objects, one a line; empty lines are left out. Raises: BadFrame, TooLarge."""
    text = text_of(body)
    if text.count("\n") > MAX_LINES:
        raise TooLarge(f"the body has more than {MAX_LINES} lines, including empty ones", field="body")
    lines = ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())
    for number, line in islice(lines, MAX_BATCH + 1):  # one more shows that they are too many
        try:
            yield parse(line)
        except BadFrame as error:
            message = error.message.replace("a frame must be one", "it must be one")
            raise BadFrame(f"line {number}: {message}", field="body") from None
