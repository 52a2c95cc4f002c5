"""The server's end of a connection: reads requests, knows role and state, keeps a worker's account."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from attrs import define, field

from fairq.errors import BadRequest, Draining, FairqError, Forbidden
from fairq.model import Lease
from fairq.wire.codec import decode_client
from fairq.wire.messages import (
    CLIENT_FRAMES,
    MAX_MESSAGE_BYTES,
    Dismiss,
    Drain,
    Error,
    Ping,
    Push,
    Reply,
    Role,
    State,
    Stop,
    Welcome,
)
from fairq.wire.session import Session
from fairq.wire.slots import Slots

Place = tuple[str, str]  # queue, and a task's full id
OVER_S = 1.0  # what a lease may take to reach its worker, which counts from then
_NEVER = float("inf")
_PUSH_BYTES = MAX_MESSAGE_BYTES - 1_024
_TASK_BYTES = 512  # of a task in a push, around its payload
MAX_UNSENT_BYTES = 2 << 20  # that wait for a worker to take them, before it is given more tasks


def _why_not(frame: Any, role: Role, state: State) -> FairqError | None:
    """Look into the grid: may this role send this frame in this state?"""
    roles, states = CLIENT_FRAMES[type(frame)]
    if role not in roles:
        return Forbidden(f"a {role.value} token may not {frame.type}", field="type")
    if state in states:
        return None
    if state is State.DRAINING:
        return Draining("the server is stopping; connect again")
    return BadRequest("attach first" if state is State.OPEN else "the connection is attached already", field="type")


@define(eq=False)
class ServerSession(Session):
    """One connection as the server sees it.

    A worker's account: `credit` is what it may hold, `held` what it holds ((queue, id) -> lease number), `reserved`
    what a claim under way may bring it. `leaving_bytes()`: what was handed out and is not in the socket yet. `owners`
    is shared by the sessions of a server: who has a lease of a task on its account (`owner` stands for this one). A
    lease that is neither settled nor renewed in its time, and OVER_S more, leaves the account by itself; `is_freed`
    tells.
    """

    role: Role = Role.TENANT
    state: State = State.OPEN
    credit: int = 0
    reserved: int = 0
    held: dict[Place, int] = field(factory=dict)
    taken: dict[Place, int] = field(factory=dict)  # how often each was taken over, if ever
    owner: Any = None
    owners: dict[Place, Any] = field(factory=dict, repr=False)
    reported: set[Place] = field(factory=set)  # of these, those that told of their progress
    slots: Slots | None = None  # of a worker whose queues have weights
    leaving_bytes: Callable[[], int] = lambda: 0
    is_freed: bool = field(default=False, init=False)
    over_at: float = field(default=_NEVER, init=False)  # before that no lease is over
    _over: dict[Place, float] = field(factory=dict, init=False)  # when each of `held` is
    _lease_s: dict[str, float] = field(factory=dict, init=False)  # how long leases of each queue last

    def welcome(self, frame: Welcome) -> None:
        """Open the conversation."""
        self.send(
            Welcome.type,
            {f: v for f in Welcome.__annotations__ if (v := getattr(frame, f)) is not None and f != "type"},
        )

    def receive(self, text: str, now: float) -> Any | None:
        """Take in one text; returns a request to carry out, or None. What breaks a rule is answered here."""
        self.heard_at = now
        try:
            frame = decode_client(text)
        except FairqError as error:
            self.refuse(error.ref, error)
            return None
        refusal = _why_not(frame, self.role, self.state)
        if refusal:
            self.refuse(getattr(frame, "ref", None), refusal)
        return None if refusal or type(frame) is Ping else frame

    def reply(self, ref: int, body: dict[str, Any]) -> None:
        """Answer a request that was carried out."""
        self.send(Reply.type, {"ref": ref, "body": body})

    def refuse(self, ref: int | None, error: FairqError) -> None:
        """Answer a request that was not."""
        body = {"code": error.code, "message": error.message, "ref": ref, "field": error.field}
        body["retry_in_ms"] = error.retry_in_ms
        self.send(Error.type, {name: value for name, value in body.items() if value is not None})

    @property
    def free(self) -> int:
        """How many more tasks the worker may be given."""
        if self.state is not State.ATTACHED or self.outgoing_bytes + self.leaving_bytes() > MAX_UNSENT_BYTES:
            return 0
        return max(0, self.credit - len(self.held) - self.reserved)

    def room(self, queue: str) -> int:
        """How many more tasks of a queue the worker may be given."""
        return self.free if self.slots is None else self.slots.share(queue, self.free)

    def bring(self, place: Place, lease: int, taken: int, now: float, lease_s: float) -> None:
        """Put a lease on the account that comes from another connection, `taken` over so often."""
        self.hold({place: lease}, now, lease_s)
        self.taken[place] = taken

    def hold(self, leases: Mapping[Place, int], now: float, lease_s: float | None = None) -> None:
        """Put leases on the worker's account, or count their time from now on anew."""
        self.held.update(leases)
        self.owners.update(dict.fromkeys(leases, self.owner))
        for place in leases:
            self._over[place] = now + (lease_s or self._lease_s.get(place[0], _NEVER)) + OVER_S
            self.over_at = min(self.over_at, self._over[place])

    def drop(self, place: Place) -> None:
        """Take a lease off the worker's account."""
        del self.held[place]
        self._over.pop(place, None)
        if self.taken:
            self.taken.pop(place, None)
        if self.owners.get(place) is self.owner:
            del self.owners[place]
        if self.slots is not None:
            self.slots.ended(place)

    def drop_all(self) -> dict[str, list[tuple[str, int, int]]]:
        """Take all leases off the worker's account; returns them by queue: id, number, how often taken over."""
        by_queue: dict[str, list[tuple[str, int, int]]] = {}
        for (queue, id), lease in list(self.held.items()):
            by_queue.setdefault(queue, []).append((id, lease, self.taken.get((queue, id), 0)))
            self.drop((queue, id))
        return by_queue

    def deadline(self) -> float:
        """Return when `expire` has something to do."""
        return min(super().deadline(), self.over_at)

    def expire(self, now: float) -> None:
        """Do what is due by now."""
        super().expire(now)
        if now < self.over_at:
            return
        for place in [place for place, at in self._over.items() if at <= now]:
            self.drop(place)
            self.reported.discard(place)
            self.is_freed = True
        self.over_at = max(min(self._over.values(), default=_NEVER), now + OVER_S / 4)  # some of them at once

    def push(self, queue: str, lease_ms: int, leases: Iterable[Lease], now: float = _NEVER) -> None:
        """Give leased tasks to the worker, in as many frames as their payloads need."""
        tasks: list[dict[str, Any]] = []
        room = _PUSH_BYTES
        lease_s = self._lease_s[queue] = lease_ms / 1000
        over_at = now + lease_s + OVER_S
        self.over_at = min(self.over_at, over_at)
        for id, lease, attempt, max_attempts, tenant, enqueued_at, start_at, expires_at, payload, wanted in leases:
            self.held[queue, id] = lease
            self.owners[queue, id], self._over[queue, id] = self.owner, over_at
            task = {
                "id": id,
                "lease": lease,
                "attempt": attempt,
                "max_attempts": max_attempts,
                "tenant": tenant,
                "enqueued_at_ms": enqueued_at,
                "payload": orjson.Fragment(payload),
            }
            if start_at:
                task["start_at_ms"] = start_at
            if expires_at:
                task["expires_at_ms"] = expires_at
            if wanted:
                task["wants_result"] = True
            size = len(payload) + _TASK_BYTES
            if tasks and size > room:
                self.send(Push.type, {"queue": queue, "lease_ms": lease_ms, "tasks": tasks})
                tasks, room = [], _PUSH_BYTES
            tasks.append(task)
            room -= size
        self.send(Push.type, {"queue": queue, "lease_ms": lease_ms, "tasks": tasks})

    def stop(self, queue: str, numbers: Mapping[str, int]) -> None:
        """Tell the worker that these tasks were cancelled; id -> lease number."""
        leases = [{"id": id, "lease": lease} for id, lease in numbers.items()]
        self.send(Stop.type, {"queue": queue, "leases": leases})

    def fall_silent(self) -> None:
        """Offer nothing more, and forget what was to be sent: the client is one no more."""
        self.state = State.DRAINING
        self._outbox, self.outgoing_bytes = [], 0

    def dismiss(self) -> None:
        """Tell a worker to finish and end, and offer it nothing more."""
        self.state = State.DRAINING
        self.send(Dismiss.type)

    def drain(self) -> None:
        """Tell the client that this connection ends soon, and offer its worker nothing more."""
        if self.state is not State.DRAINING:
            self.state = State.DRAINING
            self.send(Drain.type)
