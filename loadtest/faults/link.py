"""A link between two processes, which can be slow, stand still, break, or bring single bytes."""

from __future__ import annotations

from contextlib import suppress

import trio
from attrs import define, field

HOST = "127.0.0.1"
_PIECE = 65_536
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@define(eq=False)
class Link:
    """Forwards connections from `port` to `target` while `run` runs; `delay_s` and `piece` are those of each piece."""

    port: int
    target: int
    delay_s: float = 0.0
    piece: int = _PIECE
    _scopes: set[trio.CancelScope] = field(factory=set, init=False)
    _flow: trio.Event = field(factory=trio.Event, init=False)

    def hold(self) -> None:
        """Let nothing more through, in either direction."""
        self._flow = trio.Event()

    def heal(self) -> None:
        """Let all through again, at once and whole."""
        self.delay_s, self.piece = 0.0, _PIECE
        self._flow.set()

    def cut(self) -> None:
        """Break all connections."""
        for scope in list(self._scopes):
            scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        self._flow.set()
        listeners = await trio.open_tcp_listeners(self.port, host=HOST)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._forward, listeners)
            task_status.started()

    async def _forward(self, near: trio.SocketStream) -> None:
        with trio.CancelScope() as scope, suppress(*_GONE):
            self._scopes.add(scope)
            far = await trio.open_tcp_stream(HOST, self.target)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pass_on, near, far, scope)
                    nursery.start_soon(self._pass_on, far, near, scope)
            finally:
                await trio.aclose_forcefully(far)
        self._scopes.discard(scope)
        await trio.aclose_forcefully(near)

    async def _pass_on(self, one: trio.SocketStream, other: trio.SocketStream, scope: trio.CancelScope) -> None:
        with suppress(*_GONE):
            while data := await one.receive_some(_PIECE):
                await self._flow.wait()
                await trio.sleep(self.delay_s)
                for start in range(0, len(data), self.piece):
                    await other.send_all(data[start : start + self.piece])
        scope.cancel()
