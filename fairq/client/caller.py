"""A client's interface to its connection: calls to the server, a clock, and waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fairq.model.tasks import NewTask
from fairq.wire.calls import Call


class Caller(Protocol):
    """Makes calls and waits for them. Its methods raise RuntimeError where the client may not be used.

    `Driver` (client/driver.py; for threads sync/driver.py) asks a server, `MemoryCaller` (testing/caller.py) a queue in
    memory.
    """

    @property
    def max_payload_bytes(self) -> int:
        """The longest payload in bytes that the server has said it takes."""

    def now(self) -> float:
        """Return the time in seconds, of a clock that only runs forward."""

    def request(self, verb: str, body: Mapping[str, Any], deadline: float) -> Call:
        """Make a request; the call's result is the reply's body."""

    def enqueue(self, queue: str, tasks: Sequence[NewTask], deadline: float) -> Call:
        """Enqueue at least one task; the call's result is one outcome per task."""

    def wait_task(self, queue: str, id: str, deadline: float) -> Call:
        """Wait for a task's end; the call's result is its row of `wait_tasks`."""

    async def wait(self, call: Call) -> Any:
        """Wait for a call; returns its result. Cancelled: it may still be carried out. Raises: its error."""

    async def sleep_until(self, time: float) -> None:
        """Wait until a time of `now`."""

    async def pass_turn(self) -> None:
        """Let others have a turn."""
