"""The server's end of a connection: reads requests, checks role and state, and writes pushes and answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

from attrs import define

from fairq.errors import BadRequest, Draining, FairqError, Forbidden
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES
from fairq.model.tasks import Lease
from fairq.wire.codec import decode_client
from fairq.wire.frames import Dismiss, Drain, Ended, Error, Ping, Push, Reply, Stop, Welcome
from fairq.wire.raw_payloads import Message, payload_field
from fairq.wire.session import Session
from fairq.wire.terms import MESSAGE_BYTES, Role, State
from fairq.wire.verbs import VERBS

_PUSH_BYTES = MESSAGE_BYTES - 1_024
_RARE = ("start_at_ms", "expires_at_ms", "wants_result", "name", "webhook", "trace", "uncounted_attempts")  # of a task
_ALWAYS = Lease._fields[: Lease._fields.index("start_at_ms")]
_rare_of = attrgetter(*_RARE)
_TASK_BYTES = 512  # of a task in a push, around its payload


def why_not(frame: Any, role: Role, state: State) -> FairqError | None:
    """Return why this role may not send this frame in this state; None if it may (see the grid)."""
    _, roles, states = VERBS[type(frame)]
    if role not in roles:
        needed = " or ".join(each.value for each in Role if each in roles)
        message = f"{role.value} tokens may not send `{frame.type}`: use one made for {needed} (fairq tokens create)"
        return Forbidden(message, field="type")
    if state in states:
        return None
    if state is State.DRAINING:
        return Draining("this connection is draining; connect again")
    if state is State.OPEN:
        return BadRequest("this connection is not attached: send `attach` first", field="type")
    return BadRequest("this connection is already attached", field="type")


def describe(leased: Lease) -> dict[str, Any]:
    """Describe a leased task to its worker."""
    task = dict(zip(_ALWAYS, leased, strict=False))
    name, task[name] = payload_field(leased.payload)
    rare = _rare_of(leased)
    if any(rare):
        task |= {name: value for name, value in zip(_RARE, rare, strict=True) if value}
    return task


def _ignore(*_: Any) -> None:
    pass


@define(eq=False)
class ServerSession(Session):
    """One connection as the server sees it."""

    role: Role = Role.TENANT
    state: State = State.OPEN
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES  # of new tasks
    id: str = ""  # as its `welcome` names it
    refused: Callable[[int | None, FairqError, str], None] = _ignore  # called with each refusal: ref, error, verb

    def welcome(self, frame: Welcome) -> None:
        """Send the `welcome` frame."""
        self.id = frame.session
        self.send(
            Welcome.type,
            {f: v for f in Welcome.__annotations__ if (v := getattr(frame, f)) is not None and f != "type"},
        )

    def receive(self, message: Message, now: float) -> Any | None:
        """Process one message; returns a request to carry out, or None. Invalid frames are answered here."""
        self.last_received_at = now
        try:
            frame = decode_client(message, self.max_payload_bytes)
        except FairqError as error:
            self.refuse(error.ref, error)
            return None
        refusal = why_not(frame, self.role, self.state)
        if refusal:
            self.refuse(getattr(frame, "ref", None), refusal, frame.type)
        return None if refusal or type(frame) is Ping else frame

    def reply(self, ref: int, body: dict[str, Any]) -> None:
        """Answer a request that was carried out."""
        self.send(Reply.type, {"ref": ref, "body": body})

    def tell_ended(self, ref: int, tasks: Iterable[dict[str, Any]]) -> None:
        """Send part of the answer to a `wait_tasks`."""
        self.send(Ended.type, {"ref": ref, "tasks": tasks})

    def refuse(self, ref: int | None, error: FairqError, verb: str = "") -> None:
        """Answer a request that was refused, or an unreadable frame (`ref` None)."""
        self.refused(ref, error, verb)
        body = {"code": error.code, "message": error.message, "ref": ref, "field": error.field}
        body["retry_in_ms"] = error.retry_in_ms
        self.send(Error.type, {name: value for name, value in body.items() if value is not None})

    def push(
        self,
        queue: str,
        lease_ms: int,
        leases: Iterable[Lease],
        run_timeout_ms: int = 0,
        attached_ms: int = 0,
        partition: str = "",
    ) -> None:
        """Give leased tasks to the worker, in as many frames as their payloads need; a long one goes alone."""
        head: dict[str, Any] = {"queue": queue, "lease_ms": lease_ms, "attached_ms": attached_ms}
        if run_timeout_ms:
            head["run_timeout_ms"] = run_timeout_ms
        if partition:
            head["partition"] = partition
        tasks: list[dict[str, Any]] = []
        room = _PUSH_BYTES
        for each in leases:
            task = describe(each)
            size = len(each.payload) + _TASK_BYTES
            if tasks and size > room:
                self.send(Push.type, {**head, "tasks": tasks})
                tasks, room = [], _PUSH_BYTES
            tasks.append(task)
            room -= size
        self.send(Push.type, {**head, "tasks": tasks})

    def stop(self, queue: str, numbers: Mapping[str, int]) -> None:
        """Send the worker that these tasks were cancelled; id -> lease number."""
        leases = [{"id": id, "lease": lease} for id, lease in numbers.items()]
        self.send(Stop.type, {"queue": queue, "leases": leases})

    def discard_outgoing(self) -> None:
        """Send no more tasks, and drop the outbox: the client is no longer authorized."""
        self.state = State.DRAINING
        self._outbox, self.outgoing_bytes = [], 0

    def dismiss(self) -> None:
        """Ask a worker to finish and end, and send it no more tasks."""
        self.state = State.DRAINING
        self.send(Dismiss.type)

    def drain(self) -> None:
        """Send the client that this connection ends soon, and push no more tasks."""
        if self.state is not State.DRAINING:
            self.state = State.DRAINING
            self.send(Drain.type)
