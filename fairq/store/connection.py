"""One multiplexed connection to Redis or Valkey, on trio.

All commands of one turn are sent in one write at its end (fairq/io/README.md). Replies come in order, so the
oldest waiting call is always answered next. So one timer gives every call its deadline: when the oldest call has waited
too long, the connection is closed and all its calls fail.

When a connection breaks, each call gets an exact error: `Unavailable` if its command was not sent, `OutcomeUnknown` if
it was. Nothing is resent here; callers repeat with the same ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import hiredis
import structlog
import trio
from attrs import define, field
from redis.backoff import FullJitterBackoff

from fairq.errors import FairqError, OutcomeUnknown, StoreFull, StoreRefused, Unavailable
from fairq.io.sockets import receive_some, send_now
from fairq.io.taskless import Wait
from fairq.io.turns import at_end_of_turn, call_from_end, turn_time
from fairq.store.address import Address
from fairq.store.node import BROKEN, Word, as_error, cause_of, connect, pack
from fairq.store.sentinel import following

log = structlog.get_logger("fairq.store")

Hold = Callable[["Connection", tuple[Word, ...], Wait], None]

MAX_PENDING = 10_000
_DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")  # no longer a primary: a new connection may find the new one
STALL_S = 1.5  # without an answer, before a warning is logged
_HEARD = (b"smessage", b"message", b"ssubscribe", b"subscribe")  # the last two: earlier messages were missed


@define(eq=False)
class Connection:
    """Stays connected while `run` runs, and serves any number of callers at once.

    `timeout` (s) is the deadline of connecting and of every call.
    """

    address: Address
    timeout: float = 5.0
    is_connected: bool = False
    connects: int = 0  # how often it has connected
    trouble: str = ""  # why the last attempt to connect failed
    fatal: FairqError | None = None  # why the store refuses us; a retry will not help
    _logged_outage: str = field(default="", init=False)  # what the log says of the outage that goes on
    _out: list[bytes] = field(factory=list, init=False)
    _pending: deque[Wait] = field(factory=deque, init=False)
    _stream: trio.abc.Stream | None = field(default=None, init=False)
    _rest: bytes = field(default=b"", init=False)  # of a write that the socket did not take at once
    _is_stuck: trio.Event = field(factory=trio.Event, init=False)
    _changed: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)

    async def call(self, *command: Word, hold: Hold | None = None) -> Any:
        """Send a command and return its reply. `hold`: takes the command, and sends it later in this turn.

        Cancelled: the command may still be carried out; its reply is dropped.
        Raises: Unavailable (it was not sent), OutcomeUnknown (it was), StoreFull, StoreRefused.
        """
        if not self.is_connected:
            raise Unavailable("no connection to the store")  # strangers read it too; the log names the address
        if len(self._pending) >= MAX_PENDING:
            raise Unavailable(f"too many calls wait for the store: at most {MAX_PENDING}")
        wait = Wait(turn_time())
        (hold or Connection.send)(self, command, wait)
        reply = await wait
        if isinstance(reply, Exception):
            raise as_error(reply)
        return reply

    def send(self, command: tuple[Word, ...], wait: Wait) -> None:
        """Send a command at the end of the turn; its reply ends `wait`, or an error does."""
        if not self.is_connected:  # any more: it was held
            lost = Unavailable("the connection to the store was lost before the command was sent")
            trio.lowlevel.current_trio_token().run_sync_soon(wait.end, lost)
            return
        self._out.append(pack(command))
        self._pending.append(wait)
        at_end_of_turn(self._send)

    async def call_asking(self, *command: Word) -> Any:
        """Send ASKING and then the command, for a node that is taking over the slot."""
        if self.is_connected and len(self._pending) < MAX_PENDING - 1:
            self._out.append(pack(("ASKING",)))
            self._pending.append(Wait(turn_time()))
        return await self.call(*command)  # there is no checkpoint in between

    def nodes(self) -> list[Connection]:
        """Return the connections of all primaries: only this one."""
        return [self]

    def owner(self, key: str) -> Connection:
        """Return the connection of the primary that has a key: this one."""
        return self

    async def wait_changed(self) -> None:
        """Wait until the connection is established, lost or refused."""
        await self._changed.park()

    async def wait_connected(self) -> None:
        """Wait until connected. Raises: StoreRefused if the store refuses us."""
        while not self.is_connected:
            if self.fatal:
                raise self.fatal
            await self._changed.park()

    async def run(self) -> None:
        """Connect, serve, and connect again when the store comes back, until cancelled."""
        backoff, failures = FullJitterBackoff(cap=1.0, base=0.05), 0
        while True:
            try:
                async with following(self.address) as address:
                    with trio.fail_after(self.timeout):
                        stream, reader = await connect(address)
                    try:
                        await self._serve(stream, reader)
                        failures = 0
                    finally:
                        await trio.aclose_forcefully(stream)
            except StoreRefused as error:
                self.fatal = error
                self._changed.unpark_all()
                self._tell(log.error, "store refused", str(error))
            except (*BROKEN, trio.TooSlowError, Unavailable, StoreFull) as error:
                self.trouble = cause_of(error)
                self._tell(log.warning, "store unavailable", self.trouble)
            failures += 1
            await trio.sleep(backoff.compute(failures))

    def _tell(self, log_at: Callable[..., None], event: str, error: str) -> None:
        """Log why connecting fails, once until that changes."""
        if error != self._logged_outage:
            log_at(event, store=self.address.shown, error=error)
            self._logged_outage = error

    async def _serve(self, stream: trio.abc.Stream, reader: hiredis.Reader) -> None:
        self.is_connected, self.fatal, self._stream = True, None, stream
        self.connects += 1
        self._changed.unpark_all()
        (log.info if self._logged_outage else log.debug)("store connected", store=self.address.shown)
        self._logged_outage = ""
        is_demoted = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_rest, stream, nursery.cancel_scope)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                with suppress(*BROKEN):
                    is_demoted = await self._read(stream, reader)
                nursery.cancel_scope.cancel()
        finally:
            self.is_connected, self._stream = False, None
            self._fail_pending()
            self._changed.unpark_all()
        if is_demoted:
            raise Unavailable("the node is no longer a primary")
        log.warning("store connection lost", store=self.address.shown)

    def _send(self) -> None:
        """Send the waiting commands, unless the socket has not yet taken the earlier ones."""
        if self._stream is None or self._rest or not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._rest = data[send_now(self._stream, data) :]
        if self._rest:
            call_from_end(self._is_stuck.set)

    async def _send_rest(self, stream: trio.abc.Stream, scope: trio.CancelScope) -> None:
        while True:
            await self._is_stuck.wait()
            self._is_stuck = trio.Event()
            try:
                while self._rest:
                    await stream.send_all(self._rest)
                    self._rest = b"".join(self._out)
                    self._out.clear()
            except BROKEN:
                scope.cancel()
                return

    async def _read(self, stream: trio.abc.Stream, reader: hiredis.Reader) -> bool:
        """Hand out replies until the connection ends; returns whether the store is no longer a primary."""
        while data := await receive_some(stream, 262_144):
            reader.feed(data)
            is_demoted = False
            while (reply := reader.gets()) is not False:
                if not self._pending:
                    raise hiredis.ProtocolError("a reply for which no call waits")
                self._pending.popleft().end(reply)
                is_demoted = is_demoted or (isinstance(reply, Exception) and str(reply).startswith(_DEMOTED))
            if is_demoted:
                return True
        return False

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Close the connection when a call has waited for `timeout`; log a warning after STALL_S."""
        stalled_at: float | None = None
        while True:
            await trio.sleep(min(self.timeout / 10, STALL_S / 3))
            now = trio.current_time()
            since = self._pending[0].since if self._pending else now
            if stalled_at is not None and since > stalled_at:
                log.warning("store answers again", store=self.address.shown, after_s=round(now - stalled_at, 1))
                stalled_at = None
            if now - since > self.timeout:
                log.warning("store timed out", store=self.address.shown, timeout=self.timeout)
                scope.cancel()
                return
            if stalled_at is None and now - since > STALL_S:
                log.warning("store does not answer", store=self.address.shown, for_s=round(now - since, 1))
                stalled_at = since

    def _fail_pending(self) -> None:
        sent, now = len(self._pending) - len(self._out), trio.current_time()
        for i, wait in enumerate(self._pending):
            if i < sent:
                waited = f"no answer in {now - wait.since:.1f} s" if now - wait.since > STALL_S else "no answer"
                wait.end(OutcomeUnknown(f"the connection to the store was lost after the command was sent: {waited}"))
            else:
                wait.end(Unavailable("the connection to the store was lost before the command was sent"))
        self._pending.clear()
        self._out.clear()
        self._rest, self._is_stuck = b"", trio.Event()


@define(eq=False)
class Subscription:
    """A separate connection that listens to channels; messages are notifications, and may be lost.

    `on_message(channel, message)` is called for every message, with an empty message when a channel is subscribed, and
    with an empty channel after every reconnect: messages may have been missed. `lost()` is called when a sharded
    channel has moved to another node.
    """

    address: Address
    on_message: Callable[[str, str], None]
    timeout: float = 5.0
    lost: Callable[[], None] = lambda: None
    _sharded: set[str] = field(factory=set, init=False)
    _plain: set[str] = field(factory=set, init=False)
    _has_lost: bool = field(default=False, init=False)
    _stream: trio.abc.Stream | None = field(default=None, init=False)
    _sending: trio.Lock = field(factory=trio.Lock, init=False)

    async def add(self, channel: str, *, sharded: bool = True) -> None:
        """Listen to one more channel, now and after every reconnect."""
        (self._sharded if sharded else self._plain).add(channel)
        with suppress(*BROKEN):
            await self._send("SSUBSCRIBE" if sharded else "SUBSCRIBE", channel)

    async def remove(self, channel: str) -> None:
        """Stop listening to a sharded channel."""
        self._sharded.discard(channel)
        with suppress(*BROKEN):
            await self._send("SUNSUBSCRIBE", channel)

    async def set_channels(self, sharded: set[str], plain: set[str]) -> None:
        """Listen to these channels; if a sharded one was lost, subscribe to all sharded ones again.

        Other channels are not unsubscribed: when a slot moves, the store does it.
        """
        new = [("SSUBSCRIBE", channel) for channel in sorted(sharded if self._has_lost else sharded - self._sharded)]
        new += [("SUBSCRIBE", channel) for channel in sorted(plain - self._plain)]
        self._sharded, self._plain, self._has_lost = sharded, plain, False
        with suppress(*BROKEN):
            for command in new:
                await self._send(*command)

    async def _send(self, *command: str) -> None:
        async with self._sending:
            if (stream := self._stream) is None:
                return
            with trio.move_on_after(self.timeout, shield=True) as sending:  # shielded: a command must be sent whole
                await stream.send_all(pack(command))
            if sending.cancelled_caught:  # half a command may have left
                await trio.aclose_forcefully(stream)

    async def run(self) -> None:
        """Listen until cancelled."""
        backoff, failures = FullJitterBackoff(cap=1.0, base=0.05), 0
        while True:
            with suppress(*BROKEN, trio.TooSlowError, FairqError):
                async with following(self.address) as address:
                    with trio.fail_after(self.timeout):
                        stream, reader = await connect(address)
                    try:
                        self._stream = stream
                        for channel in sorted(self._sharded):
                            await self._send("SSUBSCRIBE", channel)
                        for channel in sorted(self._plain):
                            await self._send("SUBSCRIBE", channel)
                        failures = 0
                        self.on_message("", "")
                        await self._listen(stream, reader)
                    finally:
                        self._stream = None
                        await trio.aclose_forcefully(stream)
            failures += 1
            await trio.sleep(backoff.compute(failures))

    async def _listen(self, stream: trio.abc.Stream, reader: hiredis.Reader) -> None:
        is_asked = False
        while True:
            with trio.move_on_after(self.timeout) as waiting:
                data = await receive_some(stream, 65_536)
            if waiting.cancelled_caught and is_asked:
                return  # no answer to the PING either: the connection is dead
            is_asked = waiting.cancelled_caught
            if is_asked:
                await self._send("PING")
                continue
            if not data:
                return
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if isinstance(reply, list) and reply[0] in _HEARD:
                    self.on_message(reply[1].decode(), reply[2].decode() if isinstance(reply[2], bytes) else "")
                elif self._is_loss(reply):
                    self._has_lost = True
                    self.lost()

    def _is_loss(self, reply: Any) -> bool:
        if isinstance(reply, Exception):
            return isinstance(as_error(reply), Unavailable)  # MOVED, CLUSTERDOWN
        return isinstance(reply, list) and reply[0] == b"sunsubscribe" and reply[1].decode() in self._sharded
