"""The trio driver of a client session: connects, feeds the session, sends what it hands out, connects again."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import structlog
import trio
from attrs import define, field

from fairq.errors import BadFrame, FairqError, Forbidden, SettingsError, Superseded, Unauthorized
from fairq.transport import Disconnected, Target, Transport, check_token, dial
from fairq.wire.beside import Message
from fairq.wire.calls import Call
from fairq.wire.client_session import ClientSession
from fairq.wire.messages import CLOSE_SUPERSEDED

log = structlog.get_logger("fairq.client")

S = TypeVar("S", bound=ClientSession)


@define(eq=False)
class Driver(Generic[S]):
    """Runs one session over one connection after the other, going round the URLs from any of them.

    `handle(frame)` gets the frames that the session leaves to us; `on_change()` is called after each frame and
    each deadline.
    """

    session: S
    targets: Sequence[Target]
    token: str
    handle: Callable[[Any], None] = lambda _: None
    on_change: Callable[[], None] = lambda: None
    _woken: trio.Event = field(factory=trio.Event, init=False)
    _pumps_at: float = field(default=0.0, init=False)  # until then the pump sleeps, unless it is woken
    _transport: Transport | None = field(default=None, init=False)
    _connection: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    @classmethod
    def to(cls, urls: str | Sequence[str], token: str, session: S, tls: ssl.SSLContext | None = None) -> Driver[S]:
        """Make a driver for the URL of a server, or several of servers on one store. Raises: SettingsError."""
        targets = [Target.parse(url, tls) for url in ([urls] if isinstance(urls, str) else urls)]
        if not targets:
            raise SettingsError("give the URL of at least one server", field="url")
        return cls(session, random.sample(targets, len(targets)), check_token(token))

    @property
    def is_connected(self) -> bool:
        """Whether a connection stands."""
        return self._transport is not None

    def wake_writer(self) -> None:
        """Have what the session holds sent, at the end of the scheduler's turn."""
        if self._transport:
            self._transport.wake_writer()
        if self.session.deadline() < self._pumps_at:
            self._wake()

    def _wake(self) -> None:
        self._woken.set()

    async def wait(self, call: Call) -> Any:
        """Wait for a call; returns its result. Cancelled: it may still be carried out. Raises: its error."""
        if call.is_done:
            await trio.lowlevel.checkpoint()
        else:
            done = trio.Event()
            call.wake = done.set
            self.wake_writer()
            try:
                await done.wait()
            finally:
                call.leave()
        if call.error:
            raise call.error
        return call.result

    async def run(self) -> None:
        """Stay connected until cancelled, or until the server says what time does not mend (`session.fatal`)."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump)
                await self._keep_connected()
                nursery.cancel_scope.cancel()
        finally:
            self.session.close()

    async def _keep_connected(self) -> None:
        attempt = 0
        while not self.session.fatal:
            target = self.targets[attempt % len(self.targets)]
            attempt += 1
            try:
                async with dial(target, self.token) as transport:
                    await self._converse(transport)
                log.info("disconnected", url=target.url)
            except (Unauthorized, Forbidden) as error:
                self.session.fatal = error
            except FairqError as error:
                self.session.trouble = error.message
                log.info("cannot connect", url=target.url, error=error.message)
            self.session.disconnected(trio.current_time())
            self.on_change()
            await trio.sleep_until(self.session.reconnect_at)

    async def _converse(self, transport: Transport) -> None:
        """Take in what comes until the connection ends; `_pump` may end it too."""
        self._transport, transport.source, transport.stuck = transport, self._outgoing, self._wake
        self.session.connected(trio.current_time())
        self._woken.set()  # there are deadlines now
        try:
            with trio.CancelScope() as self._connection:
                while not self.session.fatal:
                    frame = self.session.receive(await transport.receive(), trio.current_time())
                    if frame is not None:
                        self.handle(frame)
                    self.on_change()
                    if self.session.has_outgoing or self.session.deadline() < self._pumps_at:
                        self.wake_writer()
        except Disconnected as error:
            log.debug("connection ended", url=transport.remote, error=str(error))
            if error.code == CLOSE_SUPERSEDED:
                self.session.fatal = Superseded("another worker attached under this name; each needs a name of its own")
        except BadFrame as error:
            log.debug("connection ended", url=transport.remote, error=str(error))
        finally:
            self._transport = None

    def _outgoing(self) -> Sequence[Message]:
        return self.session.outgoing(trio.current_time())

    async def _pump(self) -> None:
        """Send what the socket did not take at once, and keep the session's deadlines, connected or not."""
        while True:
            now = trio.current_time()
            if self._transport:
                self.session.heard(self._transport.progressed_at)
            if now >= self.session.deadline():
                self.session.expire(now)
                self.on_change()
            if transport := self._transport:
                try:
                    if await transport.flush():
                        self.session.last_sent_at = trio.current_time()
                except Disconnected:
                    self._connection.cancel()
                if self.session.is_timed_out:
                    log.warning("the server is silent; connecting again", url=transport.remote)
                    self._connection.cancel()
            self._pumps_at = self.session.deadline()
            with trio.move_on_at(self._pumps_at):
                await self._woken.wait()
            self._woken = trio.Event()
