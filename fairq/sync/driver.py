"""The driver of a client session for threads: a thread that waits for a call does the I/O for all that wait.

There is no thread and no event loop behind it. Of the threads that wait for calls one *leads*: it waits for the
socket, connects again, keeps the session's deadlines, and wakes the threads with finished calls. When its own call is
done, the next thread of the line leads. So calls of many threads share frames, as those of many async tasks do.

While no thread waits nothing is read and no heartbeat is sent. The server then ends the connection after TIMEOUT_S, and
the next call connects anew.

One lock guards the session and all else here; it is held while something changes, never while a thread waits. What a
signal handler raises meanwhile (ctrl-C) may leave the session half changed, so then it is given up, and calls of other
threads fail with OutcomeUnknown. A signal handler may close the client, but make no call with it while its own thread
is in one: that raises RuntimeError.
"""

from __future__ import annotations

import os
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar

from attrs import define, field

from fairq.client.channel import Target, check_token, choose_servers
from fairq.client.connect_steps import HANDSHAKE_S, Address, Servers
from fairq.client.guard import RETRY_S
from fairq.errors import BadFrame, Closed, FairqError, Forbidden, OutcomeUnknown, Unauthorized
from fairq.io import forks
from fairq.io.event_loop import in_trio
from fairq.log import Log
from fairq.model.tasks import NewTask
from fairq.sync.alarm import GRACE_S, Alarm, Place
from fairq.sync.attempts import Attempts
from fairq.sync.transport import Transport, resolve
from fairq.wire.calls import Call
from fairq.wire.client_session import ClientSession
from fairq.wire.connection_errors import Disconnected
from fairq.wire.terms import HEARTBEAT_S, TIMEOUT_S

log = Log("fairq.client")
P = ParamSpec("P")
R = TypeVar("R")

# What to wait for: sockets, by file number, and whether for room in them; a server to connect to; until when.
_Left = tuple[dict[int, bool], Target | None, float]

_now = time.monotonic
_NESTED = "a signal handler or the like may not use a client of fairq.sync inside a call of its thread, but close it"
_FRESH_S = 1.0  # for which an idle connection is taken to be alive
_KEPT_S = TIMEOUT_S - HEARTBEAT_S  # after which the server may have given up on an idle connection


def check_thread() -> None:
    """Raise RuntimeError inside an event loop, which a call would stop."""
    asyncio = sys.modules.get("asyncio")
    if (asyncio and asyncio._get_running_loop()) or (in_trio() and not forks.is_child):
        raise RuntimeError(
            "this is an event loop, which fairq.sync would stop: use fairq.open_client there, and await its calls"
        )


@define(eq=False, weakref_slot=True)
class Driver:
    """Makes calls and waits for them, for any number of threads; a `fairq.client.caller.Caller`."""

    servers: Servers
    token: str | None = field(repr=False)  # None: that of FAIRQ_TOKEN at the first call
    session: ClientSession = field(init=False)
    _lock: threading.RLock = field(factory=threading.RLock, init=False)
    _is_changing: bool = field(default=False, init=False)
    _threads: set[int] = field(factory=set, init=False)  # those inside `wait`
    _alarm: Alarm = field(factory=Alarm, init=False)
    _transport: Transport | None = field(default=None, init=False)  # an open one
    _attempts: Attempts = field(init=False)  # to open one, or another while one is suspect
    _leader: Place | None = field(default=None, init=False)  # the thread that leads
    _line: dict[Place, None] = field(factory=dict, init=False)  # those that wait
    _sleeps_until: float = field(default=inf, init=False)  # until then the leader does, unless the alarm rings
    _led_at: float = field(default=-inf, init=False)
    _is_closed: bool = field(default=False, init=False)
    _said: list[Callable[[], None]] = field(factory=list, init=False)  # what is to be logged

    def __attrs_post_init__(self) -> None:
        self.session = self._new_session()
        self._attempts = Attempts(self.servers, self._cannot_connect)
        _drivers.add(self)

    def _new_session(self) -> ClientSession:
        return ClientSession()

    def _handle(self, frame: Any) -> None:
        """Take a frame that the session leaves to us; a client gets none."""

    @classmethod
    def to(cls, urls: str | Sequence[str] | None, token: str | None, tls: ssl.SSLContext | None = None) -> Driver:
        """Make a driver for the URL of a server, or several of servers on one store. None: as the environment says.

        Raises: SettingsError; RuntimeError inside an event loop.
        """
        check_thread()
        return cls(Servers(choose_servers(urls, tls)), None if token is None else check_token(token))

    _check_thread = staticmethod(check_thread)

    @property
    def max_payload_bytes(self) -> int:
        """The longest payload in bytes that the server has said it takes."""
        return self.session.enqueues.limits.payload_bytes

    def now(self) -> float:
        """Return the time in seconds. Raises: RuntimeError inside an event loop, or a call of the same thread."""
        self._check_thread()
        if threading.get_ident() in self._threads:
            raise RuntimeError(_NESTED)
        return _now()

    def request(self, verb: str, body: Mapping[str, Any], deadline: float) -> Call:
        """Make a request; the call's result is the reply's body."""
        return self._ask(ClientSession.request, verb, body, deadline)

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Enqueue at least one task; the call's result is one outcome per task."""
        return self._ask(ClientSession.enqueue, queue, tasks, deadline)

    def wait_task(self, queue: str, id: str, deadline: float) -> Call:
        """Wait for a task's end; the call's result is its row of `wait_tasks`."""
        return self._ask(ClientSession.wait_task, queue, id, deadline)

    async def wait(self, call: Call) -> Any:
        """Block the thread until a call is done; returns its result. Raises: its error."""
        place = Place()
        try:
            self._threads.add(threading.get_ident())
            self._change(partial(self._begin_to_wait, call, place))
            while not call.is_done and self._leader is not place:
                if not place.sleep(call.deadline + GRACE_S - _now()):
                    # the leader may be in a look-up of addresses
                    self._change(lambda: self.session.expire(_now()))
            self._lead(call)
        finally:
            try:
                self._change(partial(self._leave, call, place))
            except BaseException:  # interrupted here: the others must be served all the same
                self._change(partial(self._leave, call, place))
                raise
        if call.error:
            raise call.error
        return call.result

    async def sleep_until(self, time: float) -> None:
        """Block the thread until a time of `now`."""
        while (left_s := time - _now()) > 0:
            _sleep(left_s)

    async def pass_turn(self) -> None:
        """Other threads have their turns anyway."""

    def close(self) -> None:
        """Fail all calls that wait, and all later ones; close the connection."""
        with self._lock:
            self._is_closed = True
            if not self._is_changing:  # else a signal handler does it: what it has interrupted closes it at its end
                self._change(lambda: None)

    def _change(self, step: Callable[[], R]) -> R:
        """Change something with the lock held; an exception inside is not fairq's, and ends the session.

        This is no context manager: what a signal handler raises on the way into one or out of it would keep the lock.
        """
        with self._lock:
            if self._is_changing:
                raise RuntimeError(_NESTED)
            try:
                self._is_changing = True
                result = step()
                if self._is_closed:
                    self._close()
            except BaseException:
                if not self._is_closed:
                    self.session.fatal = OutcomeUnknown("interrupted; the request may have been done")
                self._end_session()
                raise
            finally:
                self._is_changing = False
                said, self._said = self._said, []
        for say in said:
            say()
        return result

    def _say(self, log: Callable[..., None], event: str, **fields: Any) -> None:
        """Log something once the lock is released: a handler may wait for a thread that waits for the lock."""
        self._said.append(partial(log, event, **fields))

    def _close(self) -> None:
        self.session.fatal = Closed("the client was closed")
        self._end_session()
        if self._leader is None:
            self._alarm.close()

    def _ask(self, ask: Callable[Concatenate[ClientSession, P], Call], *args: P.args, **kwargs: P.kwargs) -> Call:
        """Make a call of the session. Raises: SettingsError without a token."""
        if self.token is None:
            self.token = check_token(None)
        return self._change(lambda: ask(self._usable(), *args, **kwargs))

    def _usable(self) -> ClientSession:
        """Return the session; a new one after an end that is not for ever, such as a refused token."""
        if self.session.fatal and not self._is_closed:
            self.session = self._new_session()
        return self.session

    def _end_session(self) -> None:
        self.session.close()
        self._attempts.end()
        if self._transport:
            self._transport.close()
            self._transport = None
        self._wake_leader()

    def _begin_to_wait(self, call: Call, place: Place) -> None:
        """Send the call's frame if that needs no waiting, and stand in the line, or lead."""
        if call.is_done:
            return
        call.wake = place.wake
        now = _now()
        if self._leader is None:
            self._check_idle_transport(now)
        self._flush(now)
        if self._leader is None:
            self._leader = place
            return
        self._line[place] = None
        self._hurry_leader()

    def _send(self, now: float) -> None:
        """Send what needs no waiting; the leader sends the rest, and keeps a deadline that has moved forward."""
        self._flush(now)
        self._hurry_leader()

    def _flush(self, now: float) -> None:
        if self._transport:
            try:
                self._transport.flush(now)
            except Disconnected:
                self._lose(now)
                self._wake_leader()

    def _hurry_leader(self) -> None:
        """Wake the leader if it sleeps for too long."""
        if self._due_at() < self._sleeps_until or (self._transport and self._transport.wants_room):
            self._wake_leader()

    def _leave(self, call: Call, place: Place) -> None:
        """Leave the line; if the thread led, the next one does. Done twice, it is the same."""
        self._threads.discard(threading.get_ident())
        call.leave()
        self._line.pop(place, None)
        if self._leader is place:
            self._leader, self._led_at = next(iter(self._line), None), _now()
        if self._leader:
            self._line.pop(self._leader, None)
            self._leader.wake()

    def _wake_leader(self) -> None:
        if self._leader:
            self._alarm.ring()

    def _check_idle_transport(self, now: float) -> None:
        """Find out whether a connection on which no thread has waited for a while still stands."""
        idle_s = now - self._led_at
        if idle_s < _FRESH_S:
            return
        if self._attempts.is_on:
            self._attempts.end()
            self.session.reconnect_at = now
        if self._transport is None:
            return
        self.session.last_received_at = max(self.session.last_received_at, now - HEARTBEAT_S)
        if idle_s < _KEPT_S:
            self._proceed(now)
        else:
            self._lose(now)
        if self._transport is None:
            self.session.reconnect_at = now  # no attempt to connect has failed

    def _lead(self, call: Call) -> None:
        """Do the I/O for all that wait until a call is done."""
        step = partial(self._left, call)
        while left := self._change(step):
            socks, target, until = left
            if target:
                self._dial(target)
            else:
                self._alarm.wait(socks, seconds=until - _now())
            step = partial(self._step, call)

    def _due_at(self) -> float:
        """Return when the session has something to do."""
        return min(self.session.deadline(), self.session.suspicion.due_at)

    def _step(self, call: Call) -> _Left | None:
        """Do what can be done; returns what is left."""
        self._proceed(_now())
        return self._left(call)

    def _left(self, call: Call) -> _Left | None:
        """Return what to wait for, None if the call is done."""
        if call.is_done:
            return None
        now, transport, attempts = _now(), self._transport, self._attempts
        until = self._due_at()
        waited, target = attempts.opening, None
        if transport:
            waited, until = [transport, *waited], min(until, transport.deadline)
        elif not attempts.is_on:
            attempts.begin(self.session.reconnect_at)
        if attempts.next_at < inf:
            target = attempts.due(now)
            until = min(until, attempts.deadline())
        elif not transport:
            until = now  # to go on with the one that is open
        self._sleeps_until = until
        return {each.socket.fileno(): each.wants_room for each in waited if each.socket}, target, until

    def _dial(self, target: Target) -> None:
        """Begin to connect."""
        try:
            addresses = resolve(target, self._attempts.servers.turn)
        except FairqError as error:
            self._change(partial(self._attempts.miss, error))
        else:
            self._change(partial(self._begin, target, addresses))

    def _begin(self, target: Target, addresses: list[Address]) -> None:
        if not self._is_closed and self._attempts.is_on:
            token, ends_at = check_token(self.token), _now() + HANDSHAKE_S
            self._attempts.add(Transport(target, token, addresses, ends_at, self.session.outgoing))
            self._proceed(_now())

    def _proceed(self, now: float) -> None:
        """Let the connections do what they can, and the session what is due."""
        if self._attempts.opening:
            self._attempts.proceed(now)
        if self._transport is None and (transport := self._attempts.take()):
            self._transport = transport
            self.session.connected(now)
        if transport := self._transport:
            try:
                messages = transport.proceed(now)
                for message in messages:
                    frame = self.session.receive(message, now)
                    if frame is not None:
                        self._handle(frame)
                if not messages and transport.channel and transport.channel.has_progressed():
                    self.session.heard(now)
                if now >= self.session.suspicion.due_at or self.session.suspicion.is_suspect:
                    self._attempts.suspect(self.session, transport, now)
                transport.flush(now)
            except (Disconnected, BadFrame) as error:
                tell = log.warning if self._attempts.open else log.debug
                self._say(tell, "connection ended", url=transport.target.url, error=str(error))
                self._lose(now)
        if now >= self._sleeps_until:  # what came up since is seen by the next look
            self.session.expire(now)
            if self.session.is_timed_out and self._transport:
                self._say(log.warning, "the server is silent; connecting again", url=self._transport.target.url)
                self._lose(now)
        if self.session.fatal:
            self._end_session()

    def _cannot_connect(self, error: FairqError) -> None:
        """Note why there is no connection; a refused token ends the session."""
        if isinstance(error, Unauthorized | Forbidden) and self._transport is None:
            self.session.fatal = error
            self._end_session()
            return
        tell = log.info if self.session.trouble else log.warning  # the first time
        self.session.trouble = error.message
        self._say(tell, "cannot connect", error=error.message)
        if not self._attempts.is_on:
            if self._transport is None:
                self.session.disconnected(_now())
            else:
                self._attempts.begin(_now() + RETRY_S)

    def _lose(self, now: float) -> None:
        """Note that the connection ended."""
        if self._transport:
            self._transport.close()
            self._transport = None
            self._wake_leader()  # it may wait for the socket that is closed now
        self.session.disconnected(now)

    def reset(self) -> None:
        """Begin anew in a process that was forked off: connection, calls and locks are the parent's."""
        if self._transport:
            self._transport.abandon()
        self._attempts.abandon()
        self._transport, self._leader, self._line = None, None, {}
        self._lock, self._alarm, self.session = threading.RLock(), Alarm(), self._new_session()
        self._is_changing, self._threads = False, set()
        if self._is_closed:
            self.session.fatal = Closed("the client was closed")


_sleep = time.sleep
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _reset_all() -> None:
    for driver in list(_drivers):
        driver.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
