"""A client's tasks on their way to the server: they are collected into frames, and many calls share one.

While SEND_WINDOW frames are under way, tasks collect for the next. A producer, or a worker that runs tasks of several
tenants, has a line for each tenant, and the lines take turns. Tenants whose partition cannot be served now have frames
of their own, so that the others' do not wait for it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field, frozen

from fairq.errors import FairqError, Retryable, TooLarge, TooMany
from fairq.model.checks import MAX_BATCH, MAX_PAYLOAD_BYTES
from fairq.model.outcomes import with_states
from fairq.model.tasks import NO_OPTIONS, OPTIONS, NewTask
from fairq.wire.calls import Call, Exchange, outcomes_of, refusals_of
from fairq.wire.frames import HeldLease
from fairq.wire.pauses import Key
from fairq.wire.raw_payloads import payload_field
from fairq.wire.terms import MESSAGE_BYTES

SEND_WINDOW = 2
FRAME_BYTES = 1_024  # of a frame, without its tasks or leases
TASK_BYTES = 256  # of a task in a frame, around its payload
_ENOUGH_BYTES = 1 << 19  # of a frame of tasks, unless the first alone is longer: the server reads others' in between
_HELD_BYTES = 256  # of the lease from which a task is enqueued
SERVED, AWAY = "", "away"  # tenants, by what became of their last frame


@frozen
class Limits:
    """The bounds of a frame, as far as the server has sent them."""

    batch: int = MAX_BATCH
    message_bytes: int = MESSAGE_BYTES
    payload_bytes: int = MAX_PAYLOAD_BYTES


@define(eq=False)
class Chunk:
    """Tasks of one enqueue call that wait to be sent, or are under way: tasks[start:stop], all of one tenant."""

    call: Call
    tasks: Sequence[NewTask]
    start: int
    stop: int
    tenant: str  # of the lease, or the one that a producer names; empty: the token's
    lease: HeldLease | None = None  # from which they are enqueued
    is_alone: bool = False  # must not share a frame with other chunks
    is_apart: bool = False  # must not share a frame with other chunks of its tenant

    def fit(self, budget: int, room: int) -> tuple[int, int, int]:
        """Return where the tasks that fit into `budget` tasks and `room` bytes stop, and what is left of both."""
        stop, left = self.start, (budget, room)
        for task in self.tasks[stop : min(self.stop, stop + budget)]:
            budget, room = budget - task.counts, room - len(task.payload) - TASK_BYTES
            room -= _HELD_BYTES if self.lease else 0
            if budget < 0 or room < 0:
                break
            left, stop = (budget, room), stop + 1
        return stop, *left

    def split(self, stop: int) -> Chunk:
        """Cut off and return the tasks before `stop`."""
        head, self.start = evolve(self, stop=stop), stop
        return head


@define(eq=False)
class EnqueueExchange(Exchange):
    pool: Enqueues
    kind: str
    queue: str
    which: str  # of the tenants: SERVED or AWAY
    chunks: list[Chunk]
    has_window = True

    @property
    def key(self) -> Key:
        """Each kind and queue has lines of its own, and so have the tenants that are away."""
        return self.kind, self.queue, self.which

    def answered(self, body: dict[str, Any], now: float) -> None:
        count = sum([chunk.stop - chunk.start for chunk in self.chunks])
        outcomes = outcomes_of(body, "outcomes", count)
        if "duplicate_of_states" in body:
            outcomes = with_states(outcomes, outcomes_of(body, "duplicate_of_states", count))
        at, refused = 0, list[Chunk]()
        refusals = refusals_of(body) if "refusals" in body else {}
        for chunk in self.chunks:
            call, size = chunk.call, chunk.stop - chunk.start
            if refusals and chunk.tenant in refusals:
                refused.append(chunk)
            elif not call.is_done:
                call.result[chunk.start : chunk.stop] = outcomes[at : at + size]
                call.missing -= size
                call.under_way -= 1
                if call.missing:
                    call.in_doubt = True
                else:
                    call.finish(call.result)
            at += size
        if refused:
            away = {tenant for tenant, error in refusals.items() if _is_sent_again(error)}
            self._refuse([chunk for chunk in refused if chunk.tenant not in away], refusals)
            self._put_off([chunk for chunk in refused if chunk.tenant in away], refusals, now)

    def _put_off(self, chunks: Sequence[Chunk], refusals: Mapping[str, FairqError], now: float) -> None:
        """Send the tasks of tenants whose partition cannot be served again later, apart from the other tenants'."""
        for chunk in chunks:
            chunk.call.refused(refusals[chunk.tenant])
        if chunks:
            self.pool.put_off(self.kind, self.queue, chunks)
            self.pool.back_off(refusals[chunks[0].tenant], now, (self.kind, self.queue, AWAY))

    def _refuse(self, chunks: Sequence[Chunk], refusals: Mapping[str, FairqError]) -> None:
        """Fail the calls of refused tenants; if several calls share one, each is sent again apart from the others."""
        count = Counter(chunk.tenant for chunk in chunks)
        for chunk in chunks:
            error = refusals[chunk.tenant]
            chunk.call.refused(error)
            chunk.is_apart = count[chunk.tenant] > 1
            if not chunk.is_apart:
                chunk.call.finish(error=error)
        self.pool.put_back(self.key, [chunk for chunk in chunks if chunk.is_apart])

    def refused(self, error: FairqError, now: float) -> None:
        if isinstance(error, Retryable):
            self.pool.back_off(error, now, self.key)
        elif len(self.chunks) == 1:
            self.chunks[0].call.finish(error=error)
            return
        for chunk in self.chunks:
            chunk.call.refused(error)
            # one of the calls is invalid: each is sent again alone to find out which
            chunk.is_alone = chunk.is_alone or not isinstance(error, Retryable)
        self.pool.put_back(self.key, self.chunks)

    def lost(self) -> None:
        for chunk in self.chunks:
            chunk.call.lost()
        self.pool.put_back(self.key, self.chunks)

    def unsent(self, error: TooLarge, now: float) -> None:
        """Send the tasks again in two halves."""
        chunks = list(self.chunks)
        if len(chunks) == 1:
            (chunk,) = chunks
            if chunk.stop - chunk.start == 1:
                chunk.call.finish(error=error)
                return
            chunk.call.under_way += 1
            chunks.insert(0, chunk.split((chunk.start + chunk.stop) // 2))
        for chunk in chunks:
            chunk.call.under_way -= 1
            chunk.is_alone = True
        self.pool.put_back(self.key, chunks)

    def body(self) -> dict[str, Any]:
        """Return the frame's fields."""
        tasks = [encode_task(task) for chunk in self.chunks for task in chunk.tasks[chunk.start : chunk.stop]]
        body: dict[str, Any] = {"queue": self.queue, "tasks": tasks}
        if self.chunks[0].lease:  # then all have one
            held = [each for chunk in self.chunks if chunk.lease for each in [chunk.lease] * (chunk.stop - chunk.start)]
            body["leases"] = [{"queue": each.queue, "id": each.id, "lease": each.lease} for each in held]
        return body


@define(eq=False)
class Enqueues:
    """A client's tasks that no frame carries yet; `back_off(error, now, key)` delays new frames."""

    back_off: Callable[[FairqError, float, Key], None]
    limits: Limits = field(factory=Limits, init=False)
    # By kind of frame, queue, and SERVED or AWAY, and then by tenant.
    lines: defaultdict[Key, OrderedDict[str, deque[Chunk]]] = field(
        factory=lambda: defaultdict(OrderedDict), init=False
    )

    def put(self, kind: str, queue: str, chunk: Chunk) -> None:
        """Add the tasks of a call to those that wait for a frame, behind others of their queue and tenant."""
        which = AWAY if chunk.tenant in self.lines.get((kind, queue, AWAY), ()) else SERVED
        self.lines[kind, queue, which].setdefault(chunk.tenant, deque()).append(chunk)

    def put_back(self, key: Key, chunks: Sequence[Chunk]) -> None:
        """Put tasks back to be sent before others of their queue and tenant."""
        for chunk in reversed(chunks):
            self.lines[key].setdefault(chunk.tenant, deque()).appendleft(chunk)

    def put_off(self, kind: str, queue: str, chunks: Sequence[Chunk]) -> None:
        """Put tasks back as those of tenants that are away, with all others of these tenants behind them."""
        served, away = self.lines[kind, queue, SERVED], self.lines[kind, queue, AWAY]
        for tenant in {chunk.tenant for chunk in chunks}:
            away.setdefault(tenant, deque()).extend(served.pop(tenant, ()))
        if not served:
            del self.lines[kind, queue, SERVED]
        self.put_back((kind, queue, AWAY), chunks)

    def sweep(self) -> None:
        """Drop the tasks of calls that are done."""
        for key, lines in list(self.lines.items()):
            for tenant, line in list(lines.items()):
                lines[tenant] = deque(chunk for chunk in line if not chunk.call.is_done)
                if not lines[tenant]:
                    del lines[tenant]
            if not lines:
                del self.lines[key]

    def gather(
        self,
        next_key: Callable[[], Key | None],
        send: Callable[[str, dict[str, Any], EnqueueExchange, float], None],
        now: float,
    ) -> None:
        """Put tasks into frames, while a kind and queue is next; one that was served goes behind the others."""
        while self.lines and (key := next_key()):
            lines = self.lines.pop(key)
            chunks = self._take_batch(lines)
            if lines:
                self.lines[key] = lines
            if chunks:
                kind, queue, which = key
                exchange = EnqueueExchange(self, kind, queue, which, chunks)
                send(exchange.kind, exchange.body(), exchange, now)

    def _take_batch(self, lines: OrderedDict[str, deque[Chunk]]) -> list[Chunk]:
        """Take chunks off the tenants' lines in turn, up to the tasks of a frame and the bytes of a message."""
        batch: list[Chunk] = []
        left = self.limits.batch, min(self.limits.message_bytes - FRAME_BYTES, _ENOUGH_BYTES)
        for _ in range(len(lines)):
            tenant, line = next(iter(lines.items()))
            count = len(batch)
            left = self._take_line(line, batch, *left)
            if line and len(batch) == count:
                break
            del lines[tenant]
            if line:
                lines[tenant] = line
            if not left[0] or (batch and batch[0].is_alone):
                break
        return batch

    def _take_line(self, line: deque[Chunk], batch: list[Chunk], budget: int, room: int) -> tuple[int, int]:
        """Take chunks off a tenant's line, up to so many tasks and bytes; splits the last. Returns what is left."""
        most, count = self.limits.message_bytes - FRAME_BYTES, len(batch)
        while line and budget:
            chunk, mine = line[0], batch[count:]
            if chunk.call.is_done:
                line.popleft()
                continue
            if (batch and (chunk.is_alone or batch[0].is_alone)) or (mine and (chunk.is_apart or mine[0].is_apart)):
                break
            stop, *left = chunk.fit(budget, room)
            if stop == chunk.start and not batch:
                stop, left = chunk.fit(chunk.tasks[chunk.start].counts, most)[0], [0, 0]
            if stop > chunk.start:
                budget, room = left
                chunk.call.under_way += 1
                batch.append(line.popleft() if stop == chunk.stop else chunk.split(stop))
            elif batch:
                break
            else:
                message = (
                    f"the task is too large: the server takes messages of at most {self.limits.message_bytes} bytes"
                )
                line.popleft().call.finish(error=TooLarge(message, field="payload"))
        return budget, room


def _is_sent_again(error: FairqError) -> bool:
    """True if a tenant's refused tasks are sent again; its caller has to hear that it has too many requests."""
    return isinstance(error, Retryable) and error.code != TooMany.code


def encode_task(task: NewTask) -> dict[str, Any]:
    """Write a task as it stands in a frame."""
    tenant, _, id = task.id.rpartition("/")
    name, payload = payload_field(task.payload)
    body: dict[str, Any] = {"id": id, name: payload}
    if tenant:
        body["tenant"] = tenant
    if task[2:] != NO_OPTIONS:
        given = zip(OPTIONS.items(), task[2:], strict=True)
        body.update((name, value) for (name, default), value in given if value != default)
    return body
