"""One end of a conversation under test, the other played by hand: frames as dicts, a number as clock."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fairq.model.tasks import NewTask
from fairq.wire.calls import Call
from fairq.wire.client_session import ClientSession
from fairq.wire.worker_session import WorkerSession
from tests.frames import read_frame

WELCOME = {"type": "welcome", "server": "s", "session": "x", "max_batch": 500, "max_message_bytes": 4 << 20}


def tasks(*ids: str, payload: bytes = b"null", **options: Any) -> list[NewTask]:
    return [NewTask(id, payload, **options) for id in ids]


class End:
    """Drives a client's or worker's session; `now` is the only clock there is."""

    def __init__(self, session: ClientSession | None = None, jitter: Callable[[], float] = lambda: 0.5) -> None:
        self.session = session or ClientSession()
        self.session.jitter = jitter
        self.now = 100.0

    def connect(self, **welcome: Any) -> End:
        """Have a connection stand and the server welcome us."""
        self.session.connected(self.now)
        self.hear({**WELCOME, "role": "worker" if isinstance(self.session, WorkerSession) else "tenant", **welcome})
        return self

    def disconnect(self) -> None:
        """Lose the connection."""
        self.session.disconnected(self.now)

    def sent(self) -> list[dict[str, Any]]:
        """Return the frames that leave now."""
        return [read_frame(message) for message in self.session.outgoing(self.now)]

    def only(self) -> dict[str, Any]:
        """Return the one frame that leaves now."""
        [frame] = self.sent()
        return frame

    def hear(self, frame: dict[str, Any]) -> Any:
        """Take in a frame of the server's."""
        return self.session.receive(json.dumps(frame), self.now)

    def reply(self, request: dict[str, Any], **body: Any) -> None:
        """Take in the answer to a request."""
        self.hear({"type": "reply", "ref": request["ref"], "body": body})

    def stored(self, request: dict[str, Any]) -> None:
        """Take in the answer to an enqueue or settle that went well."""
        self.reply(request, outcomes=["ok"] * len(request.get("tasks") or request["settlements"]))

    def refuse(self, request: dict[str, Any], code: str, field: str | None = None) -> None:
        """Take in the refusal of a request."""
        self.hear({"type": "error", "ref": request["ref"], "code": code, "message": f"because {code}", "field": field})

    def pass_time(self, seconds: float) -> None:
        """Let time pass, keeping every deadline on the way as a driver would."""
        end = self.now + seconds
        while self.session.deadline() <= end:
            self.now = max(self.now, self.session.deadline())
            self.session.expire(self.now)
            if self.session.is_timed_out or self.session.deadline() <= self.now:
                break  # the rest is for `outgoing`
        self.now = max(self.now, end)
        self.session.expire(self.now)

    def enqueue(
        self, *ids: str, queue: str = "q", payload: bytes = b"null", timeout: float = 30.0, **options: Any
    ) -> Call:
        """Ask for tasks to be enqueued."""
        return self.session.enqueue(queue, tasks(*ids, payload=payload, **options), self.now + timeout)


def ids(frame: dict[str, Any]) -> list[str]:
    """Name the tasks of an enqueue, a push or a settle."""
    return [each["id"] for each in frame.get("tasks") or frame["settlements"]]


def kind_of(frame: dict[str, Any]) -> str:
    """Name the type of a frame; of a settle that extends leases, `extend`."""
    extends = any(each["action"] == "extend" for each in frame.get("settlements", ()))
    return "extend" if extends else str(frame["type"])
