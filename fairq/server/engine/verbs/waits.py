"""The verb that waits for the ends of tasks. Its answer comes in parts: `ended` frames, and the reply."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson
import trio
from attrs import define, field

from fairq.errors import Retryable
from fairq.io.scopes import run_all
from fairq.model.places import is_partition
from fairq.model.tasks import NO_ROOM, TaskState
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body, full_ids, stopping
from fairq.store import keys
from fairq.wire import messages as wire

_ENDS = ("done", "dead", "cancelled", "unknown")


async def wait_tasks(app: App, connection: Connection, request: wire.WaitTasks) -> Body:
    """Report the ends of tasks as they happen, until all have ended or the time is up."""
    queue, ids = request.queue, full_ids(connection, request.ids)
    deadline = trio.current_time() + request.timeout_ms / 1000
    answer = _Answer(app, connection, queue, request.ref, dict(zip(ids, request.ids, strict=True)))
    if not request.timeout_ms:
        await answer.look(ids)
        return answer.rest()
    long_polls = await app.queues.long_polls_of(queue, connection.identity.account)
    with connection.waiting(ids) as release, long_polls.watch([keys.END + id for id in ids]) as watch:
        while True:
            release(await answer.look(ids))
            if not answer.waited_for or (trio.current_time() >= deadline and not app.is_draining):
                return answer.rest()
            answer.tell()
            if app.is_draining:
                raise stopping()
            heard = await watch.listen(deadline)
            ids = [id for id in answer.waited_for if keys.END + id in heard]


@define(eq=False)
class _Answer:
    """The answer to one request: the tasks that have not ended yet, and the ends that the next frame reports."""

    app: App
    connection: Connection
    queue: str
    ref: int
    waited_for: dict[str, str]  # full id -> the id as requested
    rows: list[Body] = field(factory=list)
    away: dict[str, Retryable] = field(factory=dict)  # partitions that could not be read when last looked at

    async def look(self, ids: Sequence[str]) -> list[str]:
        """Read which of these tasks have ended; returns them. A frame is sent for each page but the last.

        Where a queue has partitions, tasks of one that cannot be read are waited for on.
        """
        if not ids:
            return []
        looks = [partial(self._look_in, *each) for each in self.app.queues.by_place(self.queue, ids).items()]
        async with self.connection.long_answer():  # one message may wake many requests, and results may be long
            await (looks[0]() if len(looks) == 1 else run_all(*looks))
        return [id for id in ids if id not in self.waited_for]

    async def _look_in(self, place: str, ids: Sequence[str]) -> None:
        self.away.pop(place, None)
        try:
            await self._read(place, ids)
        except Retryable as error:
            if not is_partition(place):
                raise
            self.away[place] = error

    async def _read(self, place: str, ids: Sequence[str]) -> None:
        at = 0
        states = await self.app.store.tasks(place, ids)
        while at < len(ids):
            self.tell()
            await self.connection.wait_taken()
            results = await self.app.store.results(place, ids[at:])
            for id, state, result in zip(ids[at:], states[at:], results, strict=False):
                if result is not None or state.state in _ENDS:
                    self.rows.append(_end_of(self.waited_for.pop(id), state, result))
            at += len(results)

    def rest(self) -> Body:
        """Return the end of the answer. Raises: what kept it from reading some tasks; the others' ends are sent."""
        for error in self.away.values():
            self.tell()
            raise error
        return {"tasks": self.rows}

    def tell(self) -> None:
        """Send the ends read so far, if any."""
        if self.rows:
            self.connection.session.tell_ended(self.ref, self.rows)
            self.connection.wake_writer()
            self.rows = []


def _end_of(id: str, state: TaskState, result: bytes | None) -> Body:
    row: Body = {"id": id, "state": state.state, "reason": state.reason, "error": state.error}
    row = {name: value for name, value in row.items() if value}
    if result is not None:  # results are kept longer than task states
        row |= {"state": "done"} | ({"result": orjson.Fragment(result)} if result else {"reason": NO_ROOM})
    return row
