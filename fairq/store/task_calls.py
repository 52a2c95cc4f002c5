"""The verbs of the store about tasks: from enqueue to settlement, waiting tasks, results and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import orjson
from attrs import astuple, define, evolve, field

from fairq.errors import Deleting
from fairq.io.scopes import run_all
from fairq.model.cancelling import WaitingFilter, WaitingPage
from fairq.model.checks import MAX_BATCH, MAX_ERROR_CHARS
from fairq.model.dead_letters import DeadFilter, DeadLetter, DeadPage
from fairq.model.places import queue_of
from fairq.model.tasks import Action, Lease, NewTask, Outcome, Settlement, Taken, TaskState, WaitingTask
from fairq.model.waiting import BlockedInterval, Facts, Waiting
from fairq.model.webhooks import webhook_in
from fairq.store import keys
from fairq.store.calls import LOOKS, Calls, wall_ms
from fairq.store.covered import Covered
from fairq.store.merging import one_walk
from fairq.store.partitions import place_in
from fairq.store.records import CLAIM_HEAD, pack_options, unpack_blocked_intervals, unpack_leases, unpack_record
from fairq.store.routes import Away, everywhere, of_task, of_tasks, of_tenant
from fairq.store.rows import dead_letter, task_state

_PROGRESS_MS = 3_600_000
_MAX_CLOCKS = 10_000  # of partitions, that are remembered
_ACK = frozenset({"ack"})
_action_of, _links_of = attrgetter("action"), attrgetter("links")
_ack_args = attrgetter("action", "id", "lease", "result")


def _task_args(tasks: Sequence[NewTask]) -> list[str | bytes]:
    """Write new tasks as arguments of the store's functions."""
    return [word for task in tasks for word in (task.id, pack_options(task), task.payload)]


def _settle_args(settlements: Sequence[Settlement]) -> list[str | int | bytes]:
    """Write settlements as arguments of the store's function."""
    if _ACK.issuperset(map(_action_of, settlements)):
        return list(chain.from_iterable(map(_ack_args, settlements)))
    args: list[str | int | bytes] = []
    for action, id, lease, delay_ms, error, result, _, traceback in settlements:
        if action == "ack":
            args += (action, id, lease, result)
            continue
        args += (action, id, lease)
        if action in ("nack", "release"):
            args.append("" if delay_ms is None else delay_ms)
        if action in ("nack", "release", "reject"):
            args.append(error[:MAX_ERROR_CHARS])
        if action in ("nack", "reject"):
            args.append(traceback)
    return args


class Claim(NamedTuple):
    """The leases of one claim, their lease time, and when to tick because it blocked tenants (None: it blocked none).

    `blocked`: the intervals for which the tenants that it served were blocked before.
    """

    lease_ms: int
    leases: list[Lease]
    tick_in_ms: int | None = None
    now_ms: int = 0
    blocked: Sequence[BlockedInterval] = ()
    run_timeout_ms: int = 0  # of the queue's handlers; 0: none
    queue_weight: float = 1.0  # among the queues of its workers
    alone: frozenset[str] = frozenset()  # ids of those that run alone (lua/tasks/lost_leases.lua)
    tenants_weight: int = 0  # the sum over the tenants that compete now, in thousandths
    is_by_count: bool = False  # tenants share tasks, not time
    owed: int = 0  # how many more leases were due within guarantees


@define(eq=False)
class TaskCalls(Calls):
    """All verbs about tasks."""

    _ahead_ms: dict[str, int] = field(factory=dict, init=False)  # of partitions: their store's clock, of ours; at most

    @of_tenant
    async def enqueue(
        self,
        queue: str,
        tenant: str,
        tasks: Sequence[NewTask],
        *,
        notify: str | Covered = "all",
        maker: str | None = None,
    ) -> list[str]:
        """Store up to 500 tasks of one tenant; returns an outcome for each.

        `notify`: which waiting servers are notified: `all`; `wake <server>`: that one first; `Covered`: none, because
        the caller's claim takes as many tasks, and this leaves with it. `maker`: who makes the queue if it does not
        exist (None: the tenant; empty: the service).

        Outcomes (`fairq.model.outcomes`): `ok`; `duplicate`: the id is known; `duplicate <id>`: that task holds the
        dedupe key; both with a state; `expired`: its expiry has already passed. On return as durable as the store's
        `appendfsync` makes it. Atomic.
        """
        maker = tenant if maker is None else maker
        reply = await self._put("enqueue", queue, tenant, *_task_args(tasks), maker=maker, notify=notify)
        if reply[-1].__class__ is int:
            woken = reply.pop()
            if not isinstance(notify, Covered):  # else the claim that leaves with it finds the tenant
                self.on_woken(queue, woken)
        outcomes = [outcome.decode() for outcome in reply]
        self.counts.enqueued(queue, tenant, outcomes.count("ok"))
        return outcomes

    async def claim(
        self,
        queue: str,
        name: str,
        limit: int,
        *,
        slots: int | None = None,
        owed: int = 0,
        again: bool = False,
        covered: Covered | None = None,
    ) -> Claim:
        """Lease up to `limit` ready tasks by the fair pick, at most MAX_LEASES.

        Before these, it leases up to `owed` of tenants below their guarantees. `slots`: how many are attached (None: as
        many as before). `name` stands in the leases, and is the claim's id:
        after OutcomeUnknown, claim `again` under the same name: if any lease of that name is still open, those are
        given again and nothing new; if none is, this is a new claim.
        `covered`: enqueues that leave with it. Cancelled: the leases expire by themselves.
        """
        sent_ms = wall_ms()
        args = (name, limit, "again" if again else "", sent_ms, "" if slots is None else slots, owed or "")
        reply = await covered.send_with_claim(*args) if covered else None
        if reply is None:
            reply = await self._call("claim", queue, *args)
        now_ms, lease_ms, _, _, tick_at_ms, blocked, run_timeout_ms, weight, *more = reply[:CLAIM_HEAD]
        competing, ids, share, _, owed = more
        if "/" in queue:  # as `is_partition`, in no call
            if len(self._ahead_ms) >= _MAX_CLOCKS:
                self._ahead_ms.clear()
            self._ahead_ms[queue] = now_ms - sent_ms
        tick_in_ms = max(0, tick_at_ms - now_ms) if tick_at_ms >= 0 else None
        known = (tick_in_ms, now_ms, unpack_blocked_intervals(blocked), run_timeout_ms, weight / 1000)
        of_tenants = frozenset(map(bytes.decode, ids)), competing, bool(share), owed
        return Claim(lease_ms, unpack_leases(reply), *known, *of_tenants)

    def claimed(self, queue: str, claim: Claim) -> None:
        """Note the attempts that a claim begins, and count them."""
        self.attempts.claimed(queue_of(queue), claim.now_ms, claim.lease_ms, claim.leases)
        self.counts.claimed(queue, claim.now_ms, claim.leases)

    @of_tasks(attrgetter("id"))
    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        """End or extend up to 500 leases, each fenced by (id, lease): `ok`, `gone`, `stale` or `cancelled` (extended).

        More work than one call may do (many failures, or tasks with options) is divided among several calls.
        """
        if not any(map(_links_of, settlements)):
            return await self._settle(queue, settlements)
        plain, linked = [each for each in settlements if not each.links], dict[int, Outcome]()
        outcomes = iter(await self._settle(queue, plain) if plain else ())
        numbers = [n for n, each in enumerate(settlements) if each.links]
        await run_all(*(partial(self._settle_linked, queue, settlements[n], n, linked) for n in numbers))
        return [linked[n] if each.links else next(outcomes) for n, each in enumerate(settlements)]

    async def _settle_linked(self, queue: str, ack: Settlement, n: int, outcomes: dict[int, Outcome]) -> None:
        """Acknowledge a task, and store its follow-ups, which are all in this queue: all of it or nothing."""
        tasks = _task_args([link.task for link in ack.links])
        try:
            reply = await self._call("settle_linked", queue, ack.id, ack.lease, ack.result, *tasks)
        except Deleting:
            reply = b"gone"
        outcomes[n] = reply.decode()
        self._settled(queue, [ack], [outcomes[n]])

    async def _settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        at_once = LOOKS
        while True:
            some = settlements[len(outcomes) : len(outcomes) + at_once]
            args = _settle_args(some)
            if queue in self._ahead_ms:
                args = [*args, "sent", max(0, wall_ms() + self._ahead_ms[queue])]
            try:
                reply = await self._call("settle", queue, *args)
            except Deleting:
                return ["gone"] * len(settlements)
            outcomes += map(bytes.decode, reply)  # type: ignore[arg-type]  # the store says no other words
            if len(outcomes) >= len(settlements):
                self._settled(queue, settlements, outcomes)
                return outcomes
            at_once = len(reply)

    def _settled(self, queue: str, settlements: Sequence[Settlement], outcomes: Sequence[str]) -> None:
        self.attempts.settled(queue_of(queue), settlements, outcomes)
        self.counts.settled(queue, settlements, outcomes)

    @of_tasks(itemgetter(0))
    async def are_leased(self, queue: str, leases: Sequence[tuple[str, int]]) -> list[bool]:
        """Return which of up to 500 leases (id, number) are open."""
        rows = await self._call_in_parts("tasks", queue, [id for id, _ in leases], size=LOOKS)
        return [row[-1] == lease for row, (_, lease) in zip(rows, leases, strict=True)]

    async def take(self, queue: str, leases: Sequence[tuple[str, int]]) -> list[Taken]:
        """Extend leases (id, number) that move to another connection."""
        outcomes = await self.settle(queue, [Settlement("take", id, lease) for id, lease in leases])
        words = ([*outcome.split(" "), "0", "0"] for outcome in outcomes)
        return [Taken(outcome, int(taken), int(lasts_ms)) for outcome, taken, lasts_ms, *_ in words]

    async def give_back(self, queue: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
        """End leases (id, number, times taken over), the oldest first, except those taken over since."""
        leases = leases[::-1]  # each goes to the head of its tenant's tasks
        for start in range(0, len(leases), MAX_BATCH):
            some = leases[start : start + MAX_BATCH]  # fenced by both: number, and times taken over
            fenced: list[Any] = [Settlement(action, id, f"{lease}/{taken}") for id, lease, taken in some]  # type: ignore[arg-type]
            await self.settle(queue, fenced)

    async def cancel(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Cancel up to 500 tasks: `ok`, `running` (their workers are asked to stop) or `gone`."""
        return await self._cancel(queue, ids, "")

    @of_tenant
    async def waiting_tasks(self, queue: str, tenant: str, which: WaitingFilter, cursor: str = "") -> WaitingPage:
        """Find waiting tasks of a tenant that match, from a cursor on: about 250 are looked at."""
        args = (tenant, cursor, which.older_than_ms, which.error or "")
        next_cursor, looked, waiting, *ids = await self._call("waiting_tasks", queue, *args)
        return WaitingPage(next_cursor.decode(), looked, waiting, [id.decode() for id in ids])

    async def cancel_waiting(self, queue: str, ids: Sequence[str]) -> int:
        """Cancel the waiting ones of up to CHANGES tasks; returns how many."""
        return (await self._cancel(queue, ids, "waiting")).count("ok")

    @of_tasks()
    async def _cancel(self, queue: str, ids: Sequence[str], which: str) -> list[Outcome]:
        self.counts.of(queue)
        return [outcome.decode() for outcome in await self._call_in_parts("cancel", queue, ids, which)]

    @of_tasks()
    async def reschedule(
        self, queue: str, ids: Sequence[str], *, delay_ms: int = 0, start_at_ms: int = 0
    ) -> list[Outcome]:
        """Change when up to 500 waiting tasks start (0: now): `ok`, `running`, `expired` (unchanged) or `gone`."""
        outcomes = await self._call_in_parts("reschedule", queue, ids, delay_ms, start_at_ms)
        return [outcome.decode() for outcome in outcomes]

    @of_tenant
    async def peek(self, queue: str, tenant: str, count: int, *, brief: bool = False) -> list[WaitingTask]:
        """Read a tenant's next ready tasks, in the order in which they will be served; `brief`: without payloads."""
        reply = await self._call("peek", queue, tenant, count, "brief" if brief else "")
        tasks = []
        for packed_id, record in zip(reply[::2], reply[1::2], strict=True):
            id = packed_id.decode()
            _, enqueued_at, start_at, expires_at, payload, name, *_ = unpack_record(record)
            shown = b"" if brief else payload
            tasks.append(WaitingTask(id, enqueued_at, start_at, expires_at, shown, name, webhook_in(id)))
        return tasks

    async def tasks(self, queue: str, ids: Sequence[str]) -> list[TaskState]:
        """Read the states of up to 500 tasks."""
        return [state for state, _ in await self.tasks_and_leases(queue, ids)]

    @of_tasks()
    async def tasks_and_leases(self, queue: str, ids: Sequence[str]) -> list[tuple[TaskState, int]]:
        """Read the states of up to 500 tasks, each with the number of its lease, or 0."""
        rows = await self._call_in_parts("tasks", queue, ids, size=LOOKS)
        states = [task_state(id, row) for id, row in zip(ids, rows, strict=True)]
        leased = [i for i, state in enumerate(states) if state.state == "leased"]
        if leased:
            found = await self.connection.call("MGET", *(keys.progress_key(queue, ids[i]) for i in leased))
            for i, progress in zip(leased, found, strict=True):
                lease, fraction, text = orjson.loads(progress) if progress else (0, 0.0, "")
                if lease == rows[i][-1]:
                    states[i] = evolve(states[i], progress=fraction, progress_text=text)
        return [(state, row[-1]) for state, row in zip(states, rows, strict=True)]

    @of_task
    async def _why(self, queue: str, id: str) -> Waiting:
        """Do what `Store.why` does, with the facts of the task's partition as those of the queue."""
        now_ms, row, *pairs = await self._call("why", queue, id)
        state = task_state(id, row)
        facts = {name.decode(): float(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        return Waiting(now_ms, state.state, state.attempt, state.at_ms, Facts(**facts) if facts else None)

    @of_task
    async def write_progress(self, queue: str, id: str, lease: int, fraction: float, text: str) -> None:
        """Write a leased task's progress; it is ignored once the task has another lease."""
        value = orjson.dumps([lease, fraction, text])
        await self.connection.call("SET", keys.progress_key(queue, id), value, "PX", _PROGRESS_MS)

    @of_tasks()
    async def forget_progress(self, queue: str, ids: Sequence[str]) -> None:
        """Delete the progress of tasks that are no longer leased."""
        await self.connection.call("DEL", *(keys.progress_key(queue, id) for id in ids))

    @of_tasks()
    async def results(self, queue: str, ids: Sequence[str]) -> list[bytes | None]:
        """Read the results that are kept, as JSON text; of the first ids only if results are long (a page of 1 MiB).

        A result is empty if the limit of its tenant had no room for it.
        """
        results: list[bytes | None] = await self._call("results", queue, *ids)
        return results

    async def dead(
        self,
        queue: str,
        which: DeadFilter | None = None,
        cursor: str = "",
        count: int = 100,
        *,
        brief: bool = False,
        away: Away | None = None,
    ) -> DeadPage:
        """List dead letters that match, from a cursor on; `brief` leaves out the fields of the task's record."""
        which = which or DeadFilter()
        places = await self.registry.places(queue)
        if which.tenant:
            places = (place_in(places, which.tenant),)
        mode = "brief" if brief else ""
        pages = await everywhere(TaskCalls._dead, self, places, which, cursor, count, mode, away=away)
        return pages[0] if len(pages) == 1 else one_walk(pages, count)

    async def _dead(self, place: str, which: DeadFilter, cursor: str, count: int, mode: str) -> DeadPage:
        tenant, reason, error, older, younger = astuple(which)
        args = (tenant or "", cursor, count, reason or "", error or "", older, younger or 0, mode)
        reply = await self._call("dead", place, *args)
        return DeadPage([dead_letter(row) for row in reply[2:]], reply[0].decode(), reply[1])

    @of_task
    async def dead_letter(self, queue: str, id: str, *, brief: bool = False) -> DeadLetter | None:
        """Read one dead letter; `brief` leaves out the fields of the task's record, but for the traceback."""
        row = await self._call("dead_letter", queue, id, "brief" if brief else "")
        return dead_letter(row) if row else None

    @of_tasks()
    async def replay(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Give up to 500 dead letters a fresh set of attempts: `ok`, `gone`, or `batch_gone` (as `ok`)."""
        return [outcome.decode() for outcome in await self._call_in_parts("replay", queue, ids)]

    @of_tasks()
    async def purge(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Delete up to 500 dead letters: `ok` or `gone`."""
        return [outcome.decode() for outcome in await self._call_in_parts("purge", queue, ids)]
