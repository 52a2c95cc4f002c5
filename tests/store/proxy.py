"""A TCP proxy in front of a real server: it can hold, lose or cut what passes, at the moment a test says."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio
from attrs import define, field

HOST = "127.0.0.1"
_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, OSError)


@define(eq=False)
class Proxy:
    """Forwards connections to `target`, a TCP port of this machine or a unix socket's path."""

    target: int | str
    tls: ssl.SSLContext | None = None
    port: int = field(default=0, init=False)
    is_refusing: bool = False
    requests: int = 0  # pieces of data that clients sent
    connections: int = 0
    lost: int = 0  # replies that were lost
    loses: int = 0  # the number of a request whose reply is lost; 0: none
    _losing: int = field(default=0, init=False)
    _muted: int = field(default=0, init=False)  # so many of the first connections
    _flow: trio.Event = field(factory=trio.Event, init=False)
    _scopes: dict[trio.CancelScope, str] = field(factory=dict, init=False)  # and the name of its connection
    _refused: set[str] = field(factory=set, init=False)

    def hold(self) -> None:
        """Let no more replies through."""
        self._flow = trio.Event()

    def release(self) -> None:
        """Let replies through again, also those that were held."""
        self._flow.set()

    def mute(self) -> None:
        """Let no more replies through on the connections that there are; new ones work."""
        self._muted = self.connections

    def lose_next_reply(self) -> None:
        """Forward the next request, wait for its reply, and break the connection instead of handing it on."""
        self._losing += 1

    def cut_off(self, host: str) -> None:
        """Break the connections of one client address, and refuse it from now on."""
        self._refused.add(host)
        for scope, client in list(self._scopes.items()):
            if client == host:
                scope.cancel()

    def cut(self) -> None:
        """Break all connections now."""
        for scope in list(self._scopes):
            scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward until cancelled."""
        self._flow.set()
        listeners = await trio.open_tcp_listeners(self.port, host=HOST)
        self.port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, self._forward, listeners)
            task_status.started()

    async def _forward(self, client: trio.SocketStream) -> None:
        near: trio.abc.Stream = client
        if self.tls:
            near = trio.SSLStream(client, self.tls, server_side=True)
        host = client.socket.getpeername()[0]
        if self.is_refusing or host in self._refused:
            await trio.aclose_forcefully(near)
            return
        self.connections += 1
        number = self.connections
        with trio.CancelScope() as scope, suppress(*_GONE):
            self._scopes[scope] = host
            far: trio.SocketStream
            if isinstance(self.target, int):
                far = await trio.open_tcp_stream(HOST, self.target)
            else:
                far = await trio.open_unix_socket(self.target)
            try:
                armed: list[bool] = []
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._upstream, near, far, armed, scope)
                    nursery.start_soon(self._downstream, far, near, armed, scope, number)
            finally:
                await trio.aclose_forcefully(far)
        self._scopes.pop(scope, None)
        await trio.aclose_forcefully(near)

    async def _upstream(
        self, near: trio.abc.Stream, far: trio.abc.Stream, armed: list[bool], scope: trio.CancelScope
    ) -> None:
        with suppress(*_GONE):
            while data := await near.receive_some(65_536):
                self.requests += 1
                if self._losing and not armed:
                    self._losing -= 1
                    armed.append(True)
                if self.requests == self.loses:
                    armed.append(True)
                await far.send_all(data)
        scope.cancel()

    async def _downstream(
        self, far: trio.abc.Stream, near: trio.abc.Stream, armed: list[bool], scope: trio.CancelScope, number: int
    ) -> None:
        with suppress(*_GONE):
            while data := await far.receive_some(65_536):
                await self._flow.wait()
                if number <= self._muted:
                    continue
                if armed:
                    self.lost += 1
                    break
                await near.send_all(data)
        scope.cancel()


@asynccontextmanager
async def open_proxy(target: int | str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """Run a proxy while the context lasts."""
    proxy = Proxy(target, tls)
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        yield proxy
        nursery.cancel_scope.cancel()
