"""The driver of a client session: connects, feeds the session, sends what it hands out, connects again."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
from attrs import define, field

from fairq.client import lazy
from fairq.client.channel import Target, check_token, choose_servers
from fairq.client.connect import Race
from fairq.client.connect_steps import ConnectSteps, Servers
from fairq.client.guard import Guard
from fairq.client.transport import ClientTransport
from fairq.errors import BadFrame, FairqError, Forbidden, Superseded, Unauthorized
from fairq.io.auto_reset_event import AutoResetEvent
from fairq.io.event_loop import background, current_runtime
from fairq.io.runtime import Runtime
from fairq.log import Log
from fairq.model.tasks import NewTask
from fairq.wire.calls import Call
from fairq.wire.client_session import ClientSession
from fairq.wire.connection_errors import Disconnected
from fairq.wire.raw_payloads import Message
from fairq.wire.terms import CLOSE_SUPERSEDED

log = Log("fairq.client")

S = TypeVar("S", bound=ClientSession)


@define(eq=False)
class Driver(Generic[S]):
    """Runs one session over one connection after the other, going round the URLs from any of them.

    `handle(frame)` gets the frames that the session leaves to us; `on_change()` is called after each frame and
    each deadline.
    """

    session: S
    servers: Servers
    token: str = field(repr=False)
    handle: Callable[[Any], None]
    on_change: Callable[[], None]
    runtime: Runtime = field(factory=current_runtime, init=False)
    _woken: AutoResetEvent = field(init=False)
    _pumps_at: float = field(default=0.0, init=False)  # until then the pump sleeps, unless it is woken
    _transport: ClientTransport | None = field(default=None, init=False)
    _connection: anyio.CancelScope = field(factory=anyio.CancelScope, init=False)
    _guard: Guard = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._woken = AutoResetEvent(self.runtime.make_event)
        self._guard = Guard(self.session, self._race, lambda: self._connection.cancel())

    @classmethod
    def to(
        cls,
        urls: str | Sequence[str] | None,
        token: str | None,
        session: S,
        tls: ssl.SSLContext | None = None,
        handle: Callable[[Any], None] = lambda _: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> Driver[S]:
        """Make a driver for the URL of a server, or several of servers on one store. None: as the environment says.

        Raises: SettingsError; RuntimeError outside an event loop.
        """
        driver = cls(session, Servers(choose_servers(urls, tls)), check_token(token), handle, on_change)
        lazy.load()
        return driver

    def now(self) -> float:
        """Return the time. Raises: RuntimeError in another event loop than the one it was opened in."""
        self.runtime.check()
        return self.runtime.current_time()

    @property
    def max_payload_bytes(self) -> int:
        """The longest payload in bytes that the server has said it takes."""
        return self.session.enqueues.limits.payload_bytes

    def request(self, verb: str, body: Mapping[str, Any], deadline: float) -> Call:
        """Make a request; the call's result is the reply's body."""
        return self.session.request(verb, body, deadline)

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Enqueue at least one task; the call's result is one outcome per task."""
        return self.session.enqueue(queue, tasks, deadline)

    def wait_task(self, queue: str, id: str, deadline: float) -> Call:
        """Wait for a task's end; the call's result is its row of `wait_tasks`."""
        return self.session.wait_task(queue, id, deadline)

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of `now`."""
        await anyio.sleep_until(time)

    async def pass_turn(self) -> None:
        """Let others have a turn."""
        await self.runtime.checkpoint()

    def wake_writer(self) -> None:
        """Send what the session holds, as `send_soon` does; its deadlines may have moved forward."""
        self.send_soon()
        if self.session.deadline() < self._pumps_at:
            self._woken.set()

    def send_soon(self, *, waits: bool = False) -> None:
        """Send what the session holds at the end of the scheduler's turn; `waits`: the calling task waits next."""
        if self._transport:
            (self.runtime.before_waiting if waits else self.runtime.at_end_of_turn)(self._transport.send_now)

    def send_now(self) -> None:
        """Send what the session holds, as much of it as the socket takes."""
        if self._transport:
            self._transport.send_now()

    async def wait(self, call: Call) -> Any:
        """Wait for a call; returns its result. Cancelled: it may still be carried out. Raises: its error."""
        if call.is_done:
            await self.runtime.checkpoint()
        else:
            done = self.runtime.make_wakeup()
            try:
                call.wake = partial(self.runtime.call_from_end, done.set)  # it may fail as it is sent
                self.send_soon(waits=True)
                if call.deadline < self._pumps_at:
                    self._woken.set()
                await done.wait()
            finally:
                # ctrl-C amid trio's wait can leave us among the event's tasks: to wake us later would crash trio
                call.wake = _nobody
                call.leave()
        if call.error:
            raise call.error
        return call.result

    async def run(self) -> None:
        """Stay connected until cancelled, or until the server says what time does not mend (`session.fatal`)."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pump)
                group.start_soon(self._guard.run)
                await self._keep_connected()
                group.cancel_scope.cancel()
        finally:
            self.session.close()

    async def _keep_connected(self) -> None:
        opened: ConnectSteps | None = None
        while not self.session.fatal:
            try:
                opened = opened or await self._race()
            except (Unauthorized, Forbidden) as error:
                self.session.fatal = error
            if opened:
                await self._converse(opened)
            self.session.disconnected(self.runtime.current_time())
            self.on_change()
            lost, opened = opened, None
            if self.session.fatal:
                return
            if lost and (opened := self._guard.take()):
                log.warning("the server does not answer; going on with another connection", url=lost.target.url)
                continue
            if lost:
                log.warning("connection lost; connecting again", url=lost.target.url)
            await anyio.sleep_until(self.session.reconnect_at)

    async def _race(self) -> ConnectSteps | None:
        return await Race(self.servers, self.token, self._cannot_connect).run()

    def _cannot_connect(self, target: Target, error: FairqError) -> None:
        tell = log.info if self.session.trouble else log.warning  # the first time
        self.session.trouble = error.message
        tell("cannot connect", url=target.url, error=error.message)

    async def _converse(self, opened: ConnectSteps) -> None:
        """Take in what comes until the connection ends, and close it; `_pump` may end it too."""
        transport = ClientTransport.of(opened, self.session.outgoing, self._woken.set, self._take)
        log.info("connected", url=transport.remote)
        self._transport = transport
        self.session.connected(self.runtime.current_time())
        self._woken.set()  # there are deadlines now
        self._guard.watch(transport)
        try:
            with anyio.CancelScope() as self._connection:
                while not self.session.fatal:
                    self._take(await transport.receive(), self.runtime.current_time())
        except Disconnected as error:
            log.debug("connection ended", url=transport.remote, error=str(error))
            if error.code == CLOSE_SUPERSEDED:
                self.session.fatal = Superseded("another worker attached under this name; each needs a name of its own")
        except BadFrame as error:
            log.debug("connection ended", url=transport.remote, error=str(error))
        finally:
            self._transport = None
            self._guard.watch(None)
            transport.close()

    def _take(self, message: Message, now: float) -> None:
        """Take in one message. Raises: BadFrame; Disconnected if it was the last."""
        frame = self.session.receive(message, now)
        if frame is not None:
            self.handle(frame)
        self.on_change()
        if self.session.has_outgoing or self.session.deadline() < self._pumps_at:
            self.wake_writer()
        if self.session.fatal:
            raise Disconnected("the server refuses this client")

    async def _pump(self) -> None:
        """Send what the socket did not take at once, and keep the session's deadlines, connected or not."""
        while True:
            now = self.runtime.current_time()
            if self._transport:
                self.session.heard(self._transport.progressed_at)
            if now >= self.session.deadline():
                self.session.expire(now)
                self.on_change()
            if transport := self._transport:
                try:
                    if await transport.flush():
                        self.session.last_sent_at = self.runtime.current_time()
                except Disconnected:
                    if transport is self._transport:  # else another one has taken its place meanwhile
                        self._connection.cancel()
                if self.session.is_timed_out:
                    log.warning("the server is silent; connecting again", url=transport.remote)
                    self._connection.cancel()
            self._pumps_at = self.session.deadline()
            with anyio.CancelScope(deadline=self._pumps_at):
                await self._woken.wait()


@asynccontextmanager
async def connected(
    url: str | Sequence[str] | None, token: str | None, tls: ssl.SSLContext | None
) -> AsyncIterator[Driver[ClientSession]]:
    """Stay connected, again and again, until the block is left. Raises: as `open_client`."""
    driver = Driver.to(url, token, ClientSession(), tls)
    async with background(driver.run):
        yield driver


def _nobody() -> None:
    """Wake no task."""
