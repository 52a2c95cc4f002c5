"""Covered enqueues: a claim of the same server takes as many tasks, perhaps others, so no other server is notified.

An enqueue is covered if a claim is *promised* to it: one that leaves in the same turn, with room for all its tasks that
are ready at once. It is promised if all of this holds:

- The queue is known to be registered, and workers of this server take tasks of it: the place of the tenant has a
  dispatcher here.
- No claim of that dispatcher is under way.
- Enough slots are free for a claim to leave now (server/engine/dispatch/claiming.py).
- There are slots for all tasks that have arrived since the last claim left, and one claim may take as many.

Otherwise the enqueue is sent at once, and the store notifies the servers that it names.

Who sends what is held here:

- `Calls._put` holds the command of a covered enqueue, in place of sending it (calls.py).
- The dispatcher decides at the end of the turn. If it claims, `TaskCalls.claim` sends the last of the held enqueues and
  the claim as one command, `enqueue_and_claim`, which shares one turn of the store and its fsync; the others leave
  right before it.
- If no claim leaves after all, since the room has gone, the dispatcher sends each on its own. Then all servers are
  notified.
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from fairq.errors import FairqError
from fairq.io.taskless import Wait
from fairq.io.turns import turn_time
from fairq.store import library
from fairq.store.connection import Connection
from fairq.store.node import Word


@define(eq=False)
class _Both(Wait):
    """A claim's wait for the reply to both; `enqueue` gets its own part, or the error."""

    enqueue: Wait = field(kw_only=True)

    def end(self, value: Any) -> None:
        """Resume both."""
        if isinstance(value, Exception):
            self.enqueue.end(value)  # first: it may follow the slot to another primary
            Wait.end(self, value)
        else:
            Wait.end(self, value[1])  # first: workers wait for its tasks
            self.enqueue.end(value[0])


@define(eq=False)
class Covered:
    """The covered enqueues of one queue that have not been sent."""

    held: list[tuple[Connection, tuple[Word, ...], Wait]] = field(factory=list, init=False)

    def hold(self, connection: Connection, command: tuple[Word, ...], wait: Wait) -> None:
        """Hold a command that enqueues; its reply ends `wait`."""
        self.held.append((connection, command, wait))

    def send(self, *notify: str) -> None:
        """Send what is held; without `notify`, all servers are notified."""
        held, self.held = self.held, []
        for connection, command, wait in held:
            connection.send((*command, *notify), wait)

    async def send_with_claim(self, *claim: Word) -> Any:
        """Send what is held together with a claim, by its arguments; return the claim's reply.

        None: nothing is held, or the store refuses the command: then claim alone. Raises: Unavailable, OutcomeUnknown.
        """
        if not self.held:
            return None
        connection, enqueue, wait = self.held.pop()
        if self.held:
            self.send("covered")
        both = _Both(turn_time(), enqueue=wait)
        key, tasks = enqueue[2:6], enqueue[6:]
        connection.send(("FCALL", library.function_name("enqueue_and_claim"), *key, *claim, *tasks), both)
        reply = await both
        if isinstance(reply, FairqError):
            raise reply
        return None if isinstance(reply, Exception) else reply
