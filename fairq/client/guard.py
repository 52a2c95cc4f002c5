"""Watches a driver's connection: if it is suspect another one is opened, which replaces it if it is gone.

fairq/wire/suspicion.py has the rules. The driver's own task may be waiting for room in the socket.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from attrs import define, field

from fairq.client.connect_steps import ConnectSteps
from fairq.client.transport import ClientTransport
from fairq.errors import FairqError
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.event_loop import current_runtime
from fairq.io.runtime import Runtime

if TYPE_CHECKING:
    from fairq.wire.client_session import ClientSession

RETRY_S = 1.0


@define(eq=False)
class Guard:
    """Watches one connection after the other. `connect()` opens another one, and `leave()` ends the watched one."""

    session: ClientSession
    connect: Callable[[], Awaitable[ConnectSteps | None]]
    leave: Callable[[], None]
    _runtime: Runtime = field(factory=current_runtime, init=False)
    _watched: ClientTransport | None = field(default=None, init=False)
    _other: ConnectSteps | None = field(default=None, init=False)
    _opening: anyio.CancelScope | None = field(default=None, init=False)
    _woken: AutoResetEvent = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._woken = AutoResetEvent(self._runtime.make_event)
        self.session.suspicion.sooner = partial(self._runtime.call_from_end, self._woken.set)

    def watch(self, transport: ClientTransport | None) -> None:
        """Watch this connection from now on."""
        self._watched = transport
        self._woken.set()

    def take(self) -> ConnectSteps | None:
        """Return the other connection, if one is open; it is the caller's from now on."""
        other, self._other = self._other, None
        return other

    async def run(self) -> None:
        """Watch until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                while True:
                    if self._has_suspect():
                        if self._opening is None:
                            self._opening = anyio.CancelScope()
                            group.start_soon(self._open, self._opening)
                        elif self._other and self.session.suspicion.is_gone:
                            self.leave()
                    else:
                        self._drop()
                    with anyio.CancelScope(deadline=self.session.suspicion.due_at):
                        await self._woken.wait()
        finally:
            self._drop()

    def _has_suspect(self) -> bool:
        """Look at the connection, and send a ping if that is due."""
        if (transport := self._watched) is None:
            return False
        suspicion = self.session.suspicion
        suspicion.heard_at = max(suspicion.heard_at, transport.heard_at)
        if self.session.suspect(self._runtime.current_time()):
            transport.websocket.ping()
            self._runtime.at_end_of_turn(transport.send_now)
        return suspicion.is_suspect

    def _drop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if other := self.take():
            other.abandon()

    async def _open(self, scope: anyio.CancelScope) -> None:
        with scope:
            while self._other is None:
                with suppress(FairqError):  # of a server that does not know the token yet
                    self._other = await self.connect()
                if self._other is None:
                    await anyio.sleep(RETRY_S * (0.5 + self.session.jitter()))
        self._woken.set()
