"""A link between two processes: it can be slow, stand still, break, lose replies, or bring single bytes.

A link to a store also reads the calls that pass, so that a process can be killed at an edge of the protocol: a call of
a verb was sent, and the store does not have it yet; or the store has answered it, and the answer was not received yet.
"""

from __future__ import annotations

from contextlib import suppress

import hiredis
import trio
from attrs import define, field

HOST = "127.0.0.1"
_PIECE = 65_536
_USED_S = 1.5  # a replica confirms what it has each second
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)
HALF = "half an answer"


@define(eq=False)
class Edge:
    """A moment: a call of the store's `verb` was `sent`, or `answered`. Or HALF: a client has half of an answer.

    The first connection that comes there stands still, until it is to go on or to break.
    """

    when: str
    verb: str = ""
    is_taken: bool = field(default=False, init=False)  # a connection comes to it
    reached: trio.Event = field(factory=trio.Event, init=False)
    goes_on: trio.Event = field(factory=trio.Event, init=False)
    scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    async def stand_still(self, scope: trio.CancelScope) -> None:
        """Let a connection stand still here."""
        self.scope = scope
        self.reached.set()
        await self.goes_on.wait()


@define(eq=False)
class Link:
    """Forwards connections from `port` to `target` while `run` runs; `delay_s` and `piece` are those of each piece."""

    port: int
    target: int
    reads_calls: bool = False
    delay_s: float = field(default=0.0, init=False)
    piece: int = field(default=_PIECE, init=False)
    lost: trio.Event = field(factory=trio.Event, init=False)  # a reply, by `lose_reply`
    edge: Edge | None = field(default=None, init=False)  # where a connection is to stand still
    is_losing: bool = field(default=False, init=False)
    hindered: int = field(default=0, init=False)  # pieces that stood still, came late or were sliced
    refused: set[str] = field(factory=set, init=False)  # addresses of clients
    flow: trio.Event = field(factory=trio.Event, init=False)
    _passages: set[_Passage] = field(factory=set, init=False)

    @property
    def is_used(self) -> bool:
        """True if something has passed through it just now, on a connection that is not muted."""
        since = trio.current_time() - _USED_S
        return any(passage.brought_at > since and not passage.is_muted for passage in self._passages)

    def hold(self) -> None:
        """Let nothing more through, in either direction."""
        self.flow = trio.Event()

    def heal(self) -> None:
        """Let all through again, at once and whole."""
        self.delay_s, self.piece, self.is_losing, self.edge = 0.0, _PIECE, False, None
        self.refused.clear()
        self.flow.set()

    def cut(self, host: str = "") -> None:
        """Break all connections, or those of a client's address."""
        for passage in [each for each in self._passages if host in ("", each.host)]:
            passage.scope.cancel()

    def lose_reply(self) -> None:
        """Forward the next request, and break its connection instead of handing on the reply."""
        self.is_losing, self.lost = True, trio.Event()

    def mute(self) -> None:
        """Let nothing more through on the open connections, and do not end them: neither side learns of it."""
        for passage in self._passages:
            passage.is_muted = True

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        self.flow.set()
        listeners = await trio.open_tcp_listeners(self.port, host=HOST)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._forward, listeners)
            task_status.started()

    async def _forward(self, near: trio.SocketStream) -> None:
        with trio.CancelScope() as scope, suppress(*_GONE):
            host = near.socket.getpeername()[0]
            if host in self.refused:
                raise trio.ClosedResourceError
            passage = _Passage(self, near, far := await trio.open_tcp_stream(HOST, self.target), scope, host)
            self._passages.add(passage)
            try:
                await passage.run()
            finally:
                self._passages.discard(passage)
                await trio.aclose_forcefully(far)
        await trio.aclose_forcefully(near)


@define(eq=False)
class _Passage:
    """One connection through a link."""

    link: Link
    near: trio.SocketStream
    far: trio.SocketStream
    scope: trio.CancelScope
    host: str
    is_muted: bool = False
    brought_at: float = 0.0
    _loses: bool = False
    _requests: hiredis.Reader = field(factory=hiredis.Reader, init=False)
    _replies: hiredis.Reader = field(factory=hiredis.Reader, init=False)
    _sent: int = 0  # calls
    _answered: int = 0
    _edge: Edge | None = None  # to which the answer of the call `_due` comes
    _due: int = 0

    async def run(self) -> None:
        """Forward until either side ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forward_requests)
            nursery.start_soon(self._forward_replies)

    async def _forward_requests(self) -> None:
        with suppress(*_GONE):
            while data := await self.near.receive_some(_PIECE):
                await self._flow()
                if self.link.is_losing and not self.is_muted:
                    self.link.is_losing, self._loses = False, True
                if self.link.reads_calls and (edge := self._edge_of(data)):
                    if edge.when == "sent":
                        await edge.stand_still(self.scope)
                    else:
                        self._edge, self._due = edge, self._sent
                await self._bring(self.far, data)
        self._end()

    async def _forward_replies(self) -> None:
        with suppress(*_GONE):
            while data := await self.far.receive_some(_PIECE):
                await self._flow()
                if self._loses:
                    self.link.lost.set()
                    break
                if self.link.reads_calls:
                    self._count_replies(data)
                    if (due := self._edge) and self._answered >= self._due:
                        self._edge = None
                        await due.stand_still(self.scope)
                elif (edge := self.link.edge) and not edge.is_taken and edge.when == HALF and len(data) > 1:
                    edge.is_taken = True
                    await self._bring(self.near, data[: len(data) // 2])
                    await edge.stand_still(self.scope)
                await self._bring(self.near, data)
        self._end()

    async def _flow(self) -> None:
        self.link.hindered += not self.link.flow.is_set()
        await self.link.flow.wait()

    async def _bring(self, stream: trio.SocketStream, data: bytes | bytearray) -> None:
        self.brought_at = trio.current_time()
        self.link.hindered += self.link.delay_s > 0 or self.link.piece < len(data)
        await trio.sleep(self.link.delay_s)
        while data and not self.is_muted:
            piece = self.link.piece  # when the link is healed, the rest goes at once
            await stream.send_all(data[:piece])
            data = data[piece:]

    def _end(self) -> None:
        if not self.is_muted:
            self.scope.cancel()

    def _edge_of(self, data: bytes | bytearray) -> Edge | None:
        """Count the calls in some requests; return the link's edge if one of them comes to it."""
        found = None
        self._requests.feed(bytes(data))
        while (call := self._requests.gets()) is not False:
            self._sent += 1
            edge, name = self.link.edge, call[1] if len(call) > 1 else b""  # fq_<version>_<verb>
            if edge and not edge.is_taken and name.split(b"_", 2)[2:] == [edge.verb.encode()]:
                found, edge.is_taken = edge, True
        return found

    def _count_replies(self, data: bytes | bytearray) -> None:
        self._replies.feed(bytes(data))
        while self._replies.gets() is not False:
            self._answered += 1
