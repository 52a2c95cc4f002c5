"""From URLs and a token to an open connection, under asyncio and trio."""

from __future__ import annotations

import socket
from collections.abc import Callable

import anyio
from attrs import define, field

from fairq.client.channel import Target
from fairq.client.connect_steps import HANDSHAKE_S, ConnectSteps, Servers, addresses_in
from fairq.errors import FairqError, Forbidden, Unauthorized
from fairq.io.event_loop import current_runtime
from fairq.io.runtime import Event, Runtime


async def connect(target: Target, token: str, turn: int = 0) -> ConnectSteps:
    """Connect to a server, in each turn to another of its addresses first.

    Raises: Unauthorized or Forbidden if it refuses us; Unavailable if it cannot be reached, or breaks the protocol.
    """
    runtime = current_runtime()
    steps = ConnectSteps(target, token, [], runtime.current_time() + HANDSHAKE_S)
    try:
        await _open(steps, runtime, turn)
    except BaseException:
        steps.abandon()
        raise
    return steps


async def _open(steps: ConnectSteps, runtime: Runtime, turn: int) -> None:
    """Look up the server's addresses, and take all steps."""
    target = steps.target
    try:
        with anyio.CancelScope(deadline=steps.ends_at):
            found = await anyio.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            steps.addresses = addresses_in(found, turn)
    except OSError as error:
        raise target.unreachable(error) from None
    while steps.open(runtime.current_time()) is None:
        assert steps.socket is not None
        with anyio.CancelScope(deadline=steps.deadline):
            await (anyio.wait_writable if steps.wants_room else anyio.wait_readable)(steps.socket)


@define(eq=False)
class Race:
    """Connections to one server after the other, begun while earlier ones are not open yet.

    `failed(target, error)` is called for each that fails.
    """

    servers: Servers
    token: str = field(repr=False)
    failed: Callable[[Target, FairqError], None]
    _begun: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)
    _error: FairqError | None = field(default=None, init=False)
    _first: ConnectSteps | None = field(default=None, init=False)
    _is_over: Event = field(init=False)

    async def run(self) -> ConnectSteps | None:
        """Return the first that is open; None if each has failed. Raises: Unauthorized, Forbidden."""
        self._is_over = current_runtime().make_event()
        try:
            async with anyio.create_task_group() as group:
                while self._first is None and self._error is None and (not self._begun or self._ended < self._begun):
                    self._begun += 1
                    group.start_soon(self._try, self.servers.next(), self.servers.turn)
                    with anyio.move_on_after(self.servers.pause_s(self._begun)):
                        await self._is_over.wait()
                group.cancel_scope.cancel()
        except BaseException:
            if self._first:
                self._first.abandon()
            raise
        if self._first is None and self._error:
            raise self._error
        return self._first

    async def _try(self, target: Target, turn: int) -> None:
        try:
            opened = await connect(target, self.token, turn)
        except (Unauthorized, Forbidden) as error:
            self._error = error
        except FairqError as error:
            self.failed(target, error)
        else:
            if self._first is not None:
                opened.abandon()
            else:
                self._first = opened
                self.servers.reached(target)
        self._ended += 1
        if self._first or self._error or self._ended == self._begun:
            self._is_over.set()
