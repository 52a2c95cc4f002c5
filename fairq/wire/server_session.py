"""The server's end of a connection: reads requests, knows role and state, keeps a worker's account."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from attrs import define, field

from fairq.errors import BadRequest, FairqError, Forbidden
from fairq.model import Lease
from fairq.wire.codec import decode_client
from fairq.wire.messages import CLIENT_FRAMES, Drain, Error, Ping, Push, Reply, Role, State, Welcome
from fairq.wire.session import Session

_STATE_ERRORS = {
    State.OPEN: "attach first",
    State.ATTACHED: "the connection is attached already",
    State.DRAINING: "the server is draining",
}


@define(eq=False)
class ServerSession(Session):
    """One connection as the server sees it.

    A worker's account: `credit` is what it may hold, `held` what it holds ((queue, id) -> attempt), `reserved` what a
    claim under way may bring it.
    """

    role: Role = Role.TENANT
    state: State = State.OPEN
    credit: int = 0
    reserved: int = 0
    held: dict[tuple[str, str], int] = field(factory=dict)

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
            roles, states = CLIENT_FRAMES[type(frame)]
            if self.role not in roles:
                raise self._with_ref(frame, Forbidden(f"a {self.role.value} token may not {frame.type}", field="type"))
            if self.state not in states:
                raise self._with_ref(frame, BadRequest(_STATE_ERRORS[self.state], field="type"))
        except FairqError as error:
            self.refuse(error.ref, error)
            return None
        return None if type(frame) is Ping else frame

    @staticmethod
    def _with_ref(frame: Any, error: FairqError) -> FairqError:
        error.ref = getattr(frame, "ref", None)
        return error

    def reply(self, ref: int, body: dict[str, Any]) -> None:
        """Answer a request that was carried out."""
        self.send(Reply.type, {"ref": ref, "body": body})

    def refuse(self, ref: int | None, error: FairqError) -> None:
        """Answer a request that was not."""
        body = {"code": error.code, "message": error.message, "ref": ref, "field": error.field}
        self.send(Error.type, {name: value for name, value in body.items() if value is not None})

    @property
    def free(self) -> int:
        """How many more tasks the worker may be given."""
        return 0 if self.state is not State.ATTACHED else max(0, self.credit - len(self.held) - self.reserved)

    def push(self, queue: str, lease_ms: int, leases: Iterable[Lease]) -> None:
        """Give leased tasks to the worker."""
        tasks = []
        for id, attempt, max_attempts, tenant, enqueued_at_ms, start_at_ms, expires_at_ms, payload in leases:
            self.held[queue, id] = attempt
            task: dict[str, Any] = {
                "id": id,
                "attempt": attempt,
                "max_attempts": max_attempts,
                "tenant": tenant,
                "enqueued_at_ms": enqueued_at_ms,
                "payload": orjson.Fragment(payload),
            }
            if start_at_ms:
                task["start_at_ms"] = start_at_ms
            if expires_at_ms:
                task["expires_at_ms"] = expires_at_ms
            tasks.append(task)
        self.send(Push.type, {"queue": queue, "lease_ms": lease_ms, "tasks": tasks})

    def drain(self) -> None:
        """Tell the client that this connection ends soon, and offer its worker nothing more."""
        if self.state is not State.DRAINING:
            self.state = State.DRAINING
            self.send(Drain.type)
