"""The typed API of the store: one method per verb of the Lua library."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
import structlog
import trio
from attrs import astuple, define, evolve, field

from fairq.errors import Deleting, FairqError, NotEmpty, StoreRefused, Unavailable
from fairq.model.batches import BatchPage, BatchState
from fairq.model.checks import MAX_BATCH, MAX_ERROR_CHARS
from fairq.model.dead_letters import DeadFilter, DeadLetter, DeadPage
from fairq.model.events import EventPage
from fairq.model.history import Slot
from fairq.model.limits import Limits, OpeningHours
from fairq.model.purges import WaitingFilter, WaitingPage
from fairq.model.queues import SHARES, QueueSettings, QueueState, Repair, Tick
from fairq.model.schedules import MISFIRES, ScheduleState, Timing
from fairq.model.tasks import (
    Action,
    Lease,
    NewTask,
    Outcome,
    Settlement,
    Taken,
    TaskState,
    WaitingTask,
)
from fairq.model.tenants import TenantPage, TenantState
from fairq.model.waiting import BlockedInterval, Facts, Waiting
from fairq.model.webhooks import Webhook, webhook_id, webhook_in
from fairq.scopes import run_all
from fairq.store import keys, library
from fairq.store.audit import Audit
from fairq.store.cluster import Cluster
from fairq.store.cluster_subscription import ClusterSubscription
from fairq.store.connection import Connection, Subscription
from fairq.store.counts import Counts, QueueCounts
from fairq.store.records import (
    CLAIM_HEAD,
    pack_options,
    pack_template,
    pack_timing,
    pack_waits,
    unpack_blocked_intervals,
    unpack_leases,
    unpack_opening_hours,
    unpack_record,
    unpack_schedule,
    unpack_slot,
    unpack_webhook,
)
from fairq.store.registry import Registry
from fairq.store.rows import (
    batch_state,
    dead_letter,
    event,
    limits_of,
    queue_state,
    settings_of,
    task_state,
    tenant_states,
)
from fairq.store.tokens import Tokens
from fairq.store.workers import Workers

log = structlog.get_logger("fairq.store")

CHANGES, LOOKS = 64, 250  # tasks in one call that changes, or only reads, much of each
_PROGRESS_MS = 3_600_000
_ACCOUNTS = 100  # that one call looks at
_UNMADE = "unmade"


def _wall_ms() -> int:
    """Return this process's time in ms: the store compares its own clock with it."""
    return round(time.time() * 1000)


def _task_args(tasks: Sequence[NewTask]) -> list[str | bytes]:
    """Write new tasks as arguments of the store's functions."""
    return [word for task in tasks for word in (task.id, pack_options(task), task.payload)]


def _settle_args(settlements: Sequence[Settlement]) -> list[str | int | bytes]:
    """Write settlements as arguments of the store's function."""
    args: list[str | int | bytes] = []
    for action, id, lease, delay_ms, error, result, _, traceback in settlements:
        if result and action == "ack":
            args += ("ack_with_result", id, lease, result)
            continue
        args += (action, id, lease)
        if action in ("nack", "postpone"):
            args.append("" if delay_ms is None else delay_ms)
        if action in ("nack", "postpone", "reject"):
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


class HistoryPage(NamedTuple):
    """Some intervals of a queue's history, the store's time, and what the service of tenants is divided by."""

    now_ms: int
    unit: float
    slots: list[Slot]


class Schedule(NamedTuple):
    """A schedule, and its revision in the store: a change based on it is accepted only if that is still the same."""

    revision: bytes
    state: ScheduleState

    @property
    def field(self) -> str:
        """The schedule's name in the store."""
        return f"{self.state.tenant}/{self.state.name}"


class Fire(NamedTuple):
    """A schedule that is due, and when it fires next."""

    schedule: Schedule
    next_at_ms: int


async def load_library(ask: Callable[..., Awaitable[Any]]) -> None:
    """Load our version of the function library into a store, unless it is there."""
    if await ask("FUNCTION", "LIST", "LIBRARYNAME", library.name()):
        return
    try:
        await ask("FUNCTION", "LOAD", library.source())
    except StoreRefused as error:
        if "already exists" not in error.message:  # it does if another server or call was faster
            raise


@define(eq=False)
class Store:
    """All verbs, on any number of queues. Many tasks may call at once.

    Every method raises Unavailable (nothing was done), OutcomeUnknown (it may have been done; repeat it with the same
    ids) or StoreRefused. Methods that create tasks, batches, schedules, tokens, queues or notes also raise StoreFull.
    """

    connection: Connection | Cluster
    subscription: Subscription | ClusterSubscription
    counts: Counts | None = None  # of what goes by, for the history
    registry: Registry = field(init=False)
    audit: Audit = field(init=False)
    tokens: Tokens = field(init=False)
    workers: Workers = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.tokens, self.workers = Tokens(self.connection), Workers(self.connection)
        self.registry = Registry(self.connection, self._call_at)
        self.audit = Audit(self.connection, self._call_at)

    async def _call(self, verb: str, queue: str, *args: str | bytes | int | float) -> Any:
        return await self._call_at(keys.queue_prefix(queue), verb, *args)

    async def _call_at(self, prefix: str, verb: str, *args: str | bytes | int | float) -> Any:
        command = "FCALL_RO" if verb in library.verbs("reads") else "FCALL"
        call = (command, library.function_name(verb), 1, prefix, "", "", *args)
        try:
            return await self.connection.call(*call)
        except StoreRefused as error:
            if "Function not found" not in error.message:
                raise
        log.warning("loading the function library", library=library.name())
        for node in self.connection.nodes():
            if node.is_connected:
                await load_library(node.call)
        return await self.connection.call(*call)

    async def _call_in_parts(
        self, verb: str, queue: str, ids: Sequence[str], *first: str | int, size: int = CHANGES
    ) -> list[Any]:
        """Call a verb for `size` ids at a time, to bound each call; join the replies."""
        parts = [ids[start : start + size] for start in range(0, len(ids), size)] or [ids]
        return [reply for part in parts for reply in await self._call(verb, queue, *first, *part)]

    async def _put(
        self, verb: str, queue: str, *args: str | bytes | int | float, maker: str = "", at_once: Sequence[str] = ()
    ) -> Any:
        """Call a verb that puts something into a queue; make the queue if it does not exist, for `maker` (a tenant).

        `at_once`: more arguments if the queue is known to exist, so that the call is sent before this yields.
        """
        if queue not in self.registry.known:
            at_once = ()
            await self.registry.make(queue, maker)
        try:
            return await self._call(verb, queue, *args, *at_once)
        except FairqError as error:
            if error.code != _UNMADE:
                raise
        self.registry.forget(queue)  # it was deleted, and the message was lost
        await self.registry.make(queue, maker, is_unmade=True)
        try:
            return await self._call(verb, queue, *args)
        except FairqError as error:
            if error.code != _UNMADE:
                raise
            raise Unavailable(f"queue {queue} was deleted during the call") from None

    async def enqueue(
        self, queue: str, tenant: str, tasks: Sequence[NewTask], *, notify: str = "all", maker: str | None = None
    ) -> list[str]:
        """Store up to 500 tasks of one tenant; returns an outcome for each.

        `notify`: which waiting servers are notified: `all`; `wake <server>`: that one first; `covered`: none, because
        the caller claims as many tasks right behind. `maker`: who makes the queue if it does not exist (None: the
        tenant; empty: the service).

        Outcomes: `ok`; `duplicate`: the id is known; `duplicate <id>`: that task holds the dedupe key; `expired`: its
        expiry has already passed. On return as durable as the store's `appendfsync` makes it. Atomic.
        """
        at_once = () if notify == "all" else (notify,)
        maker = tenant if maker is None else maker
        reply = await self._put("enqueue", queue, tenant, *_task_args(tasks), maker=maker, at_once=at_once)
        outcomes = [outcome.decode() for outcome in reply]
        if self.counts is not None:
            self.counts.enqueued(queue, tenant, outcomes.count("ok"))
        return outcomes

    async def claim(self, queue: str, name: str, limit: int, *, slots: int | None = None, again: bool = False) -> Claim:
        """Lease up to `limit` ready tasks by the fair pick, at most 150.

        `slots`: how many are attached (None: as many as before). `name` stands in the leases, and is the claim's id:
        after OutcomeUnknown, claim `again` under the same name, which returns the leases of the first call again.
        Cancelled: the leases expire by themselves.
        """
        told = ("again" if again else "", _wall_ms(), "" if slots is None else slots)
        reply = await self._call("claim", queue, name, limit, *told)
        now_ms, lease_ms, _, _, tick_at_ms, blocked, run_timeout_ms = reply[:CLAIM_HEAD]
        tick_in_ms = max(0, tick_at_ms - now_ms) if tick_at_ms >= 0 else None
        intervals, leases = unpack_blocked_intervals(blocked), unpack_leases(reply)
        if leases and self.counts is not None:
            self.counts.claimed(queue, now_ms, leases)
        return Claim(lease_ms, leases, tick_in_ms, now_ms, intervals, run_timeout_ms)

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        """End or extend up to 500 leases, each fenced by (id, lease): `ok`, `gone` or `stale`.

        More work than one call may do (many failures, or tasks with options) is divided among several calls.
        """
        linked: dict[int, Outcome] = {}
        plain = [each for each in settlements if not each.links]
        told = iter(await self._settle(queue, plain) if plain or not settlements else ())
        numbers = [n for n, each in enumerate(settlements) if each.links]
        await run_all(*(partial(self._settle_linked, queue, settlements[n], n, linked) for n in numbers))
        return [linked[n] if each.links else next(told) for n, each in enumerate(settlements)]

    async def _settle_linked(self, queue: str, ack: Settlement, n: int, told: dict[int, Outcome]) -> None:
        """Acknowledge a task, and store those that follow it, which are all in this queue: all of it or nothing."""
        tasks = _task_args([link.task for link in ack.links])
        try:
            reply = await self._call("settle_linked", queue, ack.id, ack.lease, ack.result or b"null", *tasks)
        except Deleting:
            reply = b"gone"
        told[n] = reply.decode()
        if self.counts is not None:
            self.counts.settled(queue, [ack], [told[n]])

    async def _settle(self, queue: str, settlements: Sequence[Settlement]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        at_once = LOOKS
        while True:
            some = settlements[len(outcomes) : len(outcomes) + at_once]
            try:
                told = await self._call("settle", queue, *_settle_args(some))
            except Deleting:
                return ["gone"] * len(settlements)
            outcomes += [outcome.decode() for outcome in told]
            if len(outcomes) >= len(settlements):
                if self.counts is not None:
                    self.counts.settled(queue, settlements, outcomes)
                return outcomes
            at_once = len(told)

    async def are_leased(self, queue: str, leases: Sequence[tuple[str, int]]) -> list[bool]:
        """Tell which of up to 500 leases (id, number) are open."""
        rows = await self._call_in_parts("tasks", queue, [id for id, _ in leases], size=LOOKS)
        return [row[0] == b"leased" and row[6] == lease for row, (_, lease) in zip(rows, leases, strict=True)]

    async def take(self, queue: str, leases: Sequence[tuple[str, int]]) -> list[Taken]:
        """Extend leases (id, number) that move to another connection."""
        outcomes = await self.settle(queue, [Settlement("take", id, lease) for id, lease in leases])
        told = ([*outcome.split(" "), "0", "0"] for outcome in outcomes)
        return [Taken(outcome, int(taken), int(lasts_ms)) for outcome, taken, lasts_ms, *_ in told]

    async def hand_back(self, queue: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
        """End leases (id, number, times taken over) of an ended connection, except those taken over since."""
        for start in range(0, len(leases), MAX_BATCH):
            some = leases[start : start + MAX_BATCH]
            fenced: list[Any] = [Settlement(action, id, f"{lease}/{taken}") for id, lease, taken in some]  # type: ignore[arg-type]
            await self.settle(queue, fenced)

    async def tick(self, queue: str, limit: int = 125) -> Tick:
        """Promote due tasks, expire late ones, reap dead leases, trim dead letters; `limit` bounds their sum."""
        tick = Tick(*await self._call("tick", queue, limit, _wall_ms()))
        if self.counts is not None and tick.reaped + tick.expired > 0:
            self.counts.of(queue).lost += tick.reaped
        return evolve(tick, ahead_ms=tick.now_ms - _wall_ms())

    async def cancel(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Cancel up to 500 tasks: `ok`, `running` (their workers are told) or `gone`."""
        if self.counts is not None:
            self.counts.of(queue)
        return [outcome.decode() for outcome in await self._call_in_parts("cancel", queue, ids, "")]

    async def waiting_tasks(self, queue: str, tenant: str, which: WaitingFilter, cursor: str = "") -> WaitingPage:
        """Find waiting tasks of a tenant that match, from a cursor on: about 250 are looked at."""
        args = (tenant, cursor, which.older_than_ms, which.error or "")
        told, looked, waiting, *ids = await self._call("waiting_tasks", queue, *args)
        return WaitingPage(told.decode(), looked, waiting, [id.decode() for id in ids])

    async def cancel_waiting(self, queue: str, ids: Sequence[str]) -> int:
        """Cancel those of up to CHANGES tasks that wait, and leave the others alone; returns how many these were."""
        if self.counts is not None:
            self.counts.of(queue)
        outcomes: list[bytes] = await self._call_in_parts("cancel", queue, ids, "waiting")
        return outcomes.count(b"ok")

    async def reschedule(
        self, queue: str, ids: Sequence[str], *, delay_ms: int = 0, start_at_ms: int = 0
    ) -> list[Outcome]:
        """Change when up to 500 waiting tasks start (0: now): `ok`, `running`, `expired` (unchanged) or `gone`."""
        outcomes = await self._call_in_parts("reschedule", queue, ids, delay_ms, start_at_ms)
        return [outcome.decode() for outcome in outcomes]

    async def set_weight(self, queue: str, tenant: str, weight: float, if_version: str = "") -> float:
        """Set a tenant's weight, which applies to its backlog at once; returns the old weight. Raises: StaleVersion."""
        previous: int = await self._put("set_weight", queue, tenant, max(1, round(weight * 1000)), if_version)
        return previous / 1000

    async def drop_tenant(self, queue: str, tenant: str) -> bool:
        """Delete a tenant that has nothing, with its settings and feed; False: there is none. Raises: NotEmpty."""
        outcome, *pairs = await self._call("drop_tenant", queue, tenant)
        if outcome == b"not_empty":
            held = {name.decode(): count for name, count in zip(pairs[::2], pairs[1::2], strict=True)}
            names = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in held.items() if count)
            raise NotEmpty(f"tenant {tenant} in queue {queue} is not empty: {names}", field="tenant")
        return bool(outcome == b"ok")

    async def forget_tenants(self, queue: str, cursor: str, idle_ms: int) -> tuple[str, int]:
        """Look at some accounts, and drop tenants that have had nothing for so long; returns where to go on ("0": at
        the end), and how many were dropped.
        """
        told, dropped = await self._call("forget_tenants", queue, cursor, _ACCOUNTS, idle_ms, _wall_ms())
        return told.decode(), dropped

    async def set_limits(
        self, queue: str, tenant: str, changes: Mapping[str, float | None], if_version: str = ""
    ) -> Limits:
        """Change limits of a tenant, or (empty name) those for all, atomically; returns the old limits.

        Raises: StaleVersion.
        """
        pairs: list[str | float] = ["if_version", if_version] if if_version else []
        for name, value in changes.items():
            pairs += (name, -1 if value is None else value)
        return limits_of(await self._put("set_limits", queue, tenant, *pairs))

    async def limits(self, queue: str, tenant: str) -> Limits:
        """Read the limits set for a tenant, or (empty name) for all."""
        return limits_of(await self._call("limits", queue, tenant))

    async def set_opening_hours(self, queue: str, hours: OpeningHours, if_version: str = "") -> str | None:
        """Set the opening hours of a tenant, or of the queue (empty text: always open); returns the old text.

        Hours with a revision are set only if it is still the one in the store; None if another server was first.
        Raises: StaleVersion.
        """
        rest = (hours.text, int(hours.is_open), hours.changes_at_ms, hours.revision, if_version)
        previous: bytes | None = await self._put("set_opening_hours", queue, hours.tenant, *rest)
        return None if previous is None else previous.decode()

    async def opening_hours(self, queue: str, tenants: Sequence[str] = ()) -> tuple[int, list[OpeningHours]]:
        """Read the store's time, and opening hours: those of `tenants` (empty name: the queue's), or those due."""
        now_ms, *rows = await self._call("opening_hours", queue, *tenants)
        return now_ms, [unpack_opening_hours(*row) for row in rows]

    async def pause(self, queue: str, tenant: str = "") -> bool:
        """Stop starting tasks of a tenant, or of the whole queue; returns whether it was already paused."""
        return bool(await self._put("pause", queue, tenant))

    async def resume(self, queue: str, tenant: str = "") -> bool:
        """Undo `pause`; returns whether it was paused."""
        return bool(await self._put("resume", queue, tenant))

    async def repair(self, queue: str, number: int | None = None, *, seconds: float = float("inf")) -> Repair:
        """Repair a queue, for about `seconds`; repeat it, with the returned number, while the outcome is `more`.

        Until the outcome is `done`, the queue gives no tasks, and changes are refused with Repairing. Any caller
        continues where the last one stopped.
        """
        deadline = trio.current_time() + seconds
        while True:
            outcome, number, doing, tasks, tenants = await self._call("repair", queue, "" if number is None else number)
            if outcome != b"more" or trio.current_time() >= deadline:
                return Repair(outcome.decode(), number, doing.decode(), tasks, tenants)

    async def configure(self, queue: str, changes: dict[str, str | int], if_version: str = "") -> QueueSettings:
        """Change settings of the queue, atomically; returns the old ones. Raises: StaleVersion."""
        pairs: list[str | int] = ["if_version", if_version] if if_version else []
        for name, value in changes.items():
            pairs += (name, SHARES.index(str(value)) if name == "share" else value)
        return settings_of(await self._put("configure", queue, *pairs))

    async def replay(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Give up to 500 dead letters a fresh set of attempts: `ok` or `gone`."""
        return [outcome.decode() for outcome in await self._call_in_parts("replay", queue, ids)]

    async def purge(self, queue: str, ids: Sequence[str]) -> list[Outcome]:
        """Delete up to 500 dead letters: `ok` or `gone`."""
        return [outcome.decode() for outcome in await self._call_in_parts("purge", queue, ids)]

    async def queues(self) -> list[str]:
        """Name all queues."""
        return sorted(await self.registry.read())

    async def queue(self, queue: str) -> QueueState:
        """Read a queue's counts and settings, in O(1)."""
        return queue_state(queue, await self._call("queue_state", queue))

    async def numbers(self, queue: str) -> dict[str, float]:
        """Read all numbers of a queue's record (QUEUE in lua/KEYS.md), in O(1)."""
        reply = await self._call("queue_state", queue)
        return {reply[i].decode(): float(reply[i + 1]) for i in range(0, len(reply), 2)}

    async def oldest_wait_ms(self, queue: str, tenants: int) -> int | None:
        """Tell the longest time for which a task that is next has been ready; None if there is no such task.

        Of more than `tenants` (at most 500) that may be served, as many are asked, by chance.
        """
        wait_ms, _ = await self._call("oldest", queue, tenants)
        return None if wait_ms < 0 else int(wait_ms)

    async def tenants(self, queue: str, names: Sequence[str] = ()) -> list[TenantState]:
        """Read those of the named tenants that there are, or all of them page by page, sorted by name."""
        if not names:
            return (await self.list_tenants(queue, "", sys.maxsize)).tenants
        unit, found = await self._unit_of_shares(queue), dict[str, TenantState]()
        for start in range(0, len(names), LOOKS):
            found |= tenant_states(await self._call("tenants", queue, "0", LOOKS, *names[start : start + LOOKS]), unit)
        return [found[tenant] for tenant in sorted(found)]

    async def list_tenants(self, queue: str, cursor: str, count: int) -> TenantPage:
        """Read `count` tenants or some more from a cursor on (empty: all), fewer only at the end, sorted by name."""
        unit, found = await self._unit_of_shares(queue), dict[str, TenantState]()
        while True:
            reply = await self._call("tenants", queue, cursor or "0", LOOKS)
            found |= tenant_states(reply, unit)
            cursor = "" if reply[0] == b"0" else reply[0].decode()
            if not cursor or len(found) >= count:
                return TenantPage([found[tenant] for tenant in sorted(found)], cursor)

    async def _unit_of_shares(self, queue: str) -> float:
        return 1000.0 if (await self.queue(queue)).settings.share == "time" else 1.0

    async def tasks(self, queue: str, ids: Sequence[str]) -> list[TaskState]:
        """Read the states of up to 500 tasks."""
        return [state for state, _ in await self.tasks_and_leases(queue, ids)]

    async def tasks_and_leases(self, queue: str, ids: Sequence[str]) -> list[tuple[TaskState, int]]:
        """Read the states of up to 500 tasks, each with the number of its lease, or 0."""
        rows = await self._call_in_parts("tasks", queue, ids, size=LOOKS)
        states = [task_state(id, row) for id, row in zip(ids, rows, strict=True)]
        leased = [i for i, state in enumerate(states) if state.state == "leased"]
        if leased:
            told = await self.connection.call("MGET", *(keys.progress_key(queue, ids[i]) for i in leased))
            for i, progress in zip(leased, told, strict=True):
                lease, fraction, text = orjson.loads(progress) if progress else (0, 0.0, "")
                if lease == rows[i][-1]:
                    states[i] = evolve(states[i], progress=fraction, progress_text=text)
        return [(state, row[-1]) for state, row in zip(states, rows, strict=True)]

    async def why(self, queue: str, id: str) -> Waiting:
        """Read the facts that explain why a task waits."""
        now_ms, row, *pairs = await self._call("why", queue, id)
        state = task_state(id, row)
        facts = {name.decode(): float(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        return Waiting(now_ms, state.state, state.attempt, state.at_ms, Facts(**facts) if facts else None)

    async def add_history(self, queue: str, counts: QueueCounts) -> bool:
        """Add what a server has counted since its last call; returns whether tasks are running."""
        args: list[str | bytes | int] = [counts.lost]
        for tenant, count in counts.tenants.items():
            args += (tenant, count.enqueued, count.started, count.failed, pack_waits(count.waits))
        return bool(await self._call("add_history", queue, *args))

    async def history(self, queue: str, step_s: int, last: int, count: int) -> HistoryPage:
        """Read what is kept of `count` intervals up to the one of a number (-1: the newest)."""
        now_ms, share, *slots = await self._call("history", queue, step_s, last, count)
        return HistoryPage(now_ms, 1.0 if share else 1000.0, [unpack_slot(packed) for packed in slots])

    async def permissions(self, queue: str) -> list[str]:
        """Return the commands of the library that the store's user may not run on a queue's keys."""
        return [name.decode() for name in await self._call("permissions", queue)]

    async def write_progress(self, queue: str, id: str, lease: int, fraction: float, text: str) -> None:
        """Write a leased task's progress; it is ignored once the task has another lease."""
        value = orjson.dumps([lease, fraction, text])
        await self.connection.call("SET", keys.progress_key(queue, id), value, "PX", _PROGRESS_MS)

    async def forget_progress(self, queue: str, ids: Sequence[str]) -> None:
        """Delete the progress of tasks that are no longer leased."""
        await self.connection.call("DEL", *(keys.progress_key(queue, id) for id in ids))

    async def open_batch(
        self,
        queue: str,
        tenant: str,
        id: str,
        max_running: int,
        callbacks: Sequence[bytes],
        *,
        events: bool = False,
        maker: str | None = None,
    ) -> bool:
        """Open a batch; callbacks are payloads for complete, success and death, or empty. False if it exists.

        `maker`: who makes the queue if it does not exist (None: the tenant).
        """
        args: tuple[str | bytes | int, ...] = (id, max_running, *callbacks, int(events))
        maker = tenant if maker is None else maker
        return bool(await self._put("open_batch", queue, tenant, *args, maker=maker) == b"ok")

    async def close_batch(self, queue: str, id: str) -> str:
        """Close a batch to new tasks; returns its old state. Raises: NotFound."""
        previous: bytes = await self._call("close_batch", queue, id)
        return previous.decode()

    async def cancel_batch(self, queue: str, id: str) -> str:
        """Close a batch and cancel its tasks (the ticker continues what exceeds one call). Raises: NotFound."""
        previous: bytes = await self._call("cancel_batch", queue, id)
        return previous.decode()

    async def batches(self, queue: str, ids: Sequence[str]) -> list[BatchState | None]:
        """Read the states of batches; None for unknown ones."""
        rows = await self._call_in_parts("batches", queue, ids, size=LOOKS)
        return [batch_state(id, row) for id, row in zip(ids, rows, strict=True)]

    async def list_batches(
        self, queue: str, tenant: str | None, state: str | None, cursor: str, count: int
    ) -> BatchPage:
        """Read about `count` batches (None: of any tenant, in any state) from a cursor on (empty: all), in no order."""
        reply = await self._call("list_batches", queue, tenant or "", state or "", cursor or "0", count)
        rows = ((id.decode(), row) for id, row in zip(reply[1::2], reply[2::2], strict=True))
        states = [each for id, row in rows if (each := batch_state(id, row))]
        return BatchPage(states, "" if reply[0] == b"0" else reply[0].decode())

    async def results(self, queue: str, ids: Sequence[str]) -> list[bytes | None]:
        """Read the results that are kept, as JSON text; of the first ids only if results are long (a page of 1 MiB)."""
        results: list[bytes | None] = await self._call("results", queue, *ids)
        return results

    async def events(self, queue: str, tenant: str, after: int, count: int) -> EventPage:
        """Read a tenant's events after an id, in order; after 0, from the oldest one kept.

        Raises: TooOld if some of them are no longer kept; BadRequest if the id is newer than the newest event.
        """
        oldest, newest, *rows = await self._call("events", queue, tenant, after, count)
        page = EventPage(oldest, newest, [event(row) for row in rows])
        page.check(after)
        return page

    async def peek(self, queue: str, tenant: str, count: int) -> list[WaitingTask]:
        """Read a tenant's next ready tasks, in the order in which they will be served."""
        reply = await self._call("peek", queue, tenant, count)
        tasks = []
        for packed_id, record in zip(reply[::2], reply[1::2], strict=True):
            id = packed_id.decode()
            _, enqueued_at, start_at, expires_at, payload, name, _ = unpack_record(record)
            tasks.append(WaitingTask(id, enqueued_at, start_at, expires_at, payload, name, webhook_in(id)))
        return tasks

    async def dead(
        self, queue: str, which: DeadFilter | None = None, cursor: str = "", count: int = 100, *, brief: bool = False
    ) -> DeadPage:
        """List dead letters that match, from a cursor on; `brief` leaves out the fields of the task's record."""
        tenant, reason, error, older, younger = astuple(which or DeadFilter())
        mode = "brief" if brief else ""
        args = (tenant or "", cursor, count, reason or "", error or "", older, younger, mode)
        reply = await self._call("dead", queue, *args)
        return DeadPage([dead_letter(row) for row in reply[2:]], reply[0].decode(), reply[1])

    async def dead_letter(self, queue: str, id: str) -> DeadLetter | None:
        """Read one dead letter."""
        row = await self._call("dead_letter", queue, id)
        return dead_letter(row) if row else None

    async def schedule(
        self,
        queue: str,
        tenant: str,
        name: str,
        timing: Timing,
        next_at_ms: int,
        misfire: str,
        task: NewTask,
        *,
        maker: str = "",
    ) -> tuple[str, int]:
        """Create or change a schedule; returns `created`, `changed` or `same`, and when it fires next.

        `maker`: the tenant that makes the queue if it is new; empty for an operator.
        """
        rest = (next_at_ms, MISFIRES.index(misfire), pack_timing(timing), pack_template(task))
        outcome, next_at = await self._put("schedule", queue, tenant, name, *rest, maker=maker)
        return outcome.decode(), next_at

    async def unschedule(self, queue: str, tenant: str, name: str) -> bool:
        """Delete a schedule; returns whether there was one."""
        return bool(await self._call("unschedule", queue, tenant, name) == b"ok")

    async def pause_schedule(self, queue: str, schedule: Schedule, next_at_ms: int | None) -> bool:
        """Stop a schedule from firing (None), or let it fire again; returns False if it has changed meanwhile."""
        args = (schedule.state.tenant, schedule.state.name, schedule.revision, "" if next_at_ms is None else next_at_ms)
        return bool(await self._call("pause_schedule", queue, *args) == b"ok")

    async def fire(self, queue: str, fires: Sequence[Fire]) -> list[str]:
        """Fire up to 100 due schedules, each once even if several servers try.

        Outcomes: `ok`, `misfire`, `gone`, `quota_exceeded`, or `duplicate` (with the id of the task that holds the
        dedupe key, if that is the cause).
        """
        args: list[str | bytes | int] = []
        for schedule, next_at_ms in fires:
            args += (schedule.field, schedule.revision, next_at_ms)
        return [outcome.decode() for outcome in await self._call("fire", queue, *args)]

    async def schedules(
        self, queue: str, tenant: str = "", name: str = "", *, offset: int = 0, count: int = 100
    ) -> tuple[int, list[Schedule]]:
        """Read the store's time, and a tenant's schedules, one of them, or a page of all, the next to fire first."""
        now_ms, *rows = await self._call("schedules", queue, tenant, name, offset, count)
        return now_ms, [Schedule(row[1], unpack_schedule(row)) for row in rows]

    async def due_schedules(self, queue: str, passed: Iterable[str] = ()) -> tuple[int, int, list[Schedule]]:
        """Read the store's time, when a schedule is due next (-1: never), and some that are due, of other tenants."""
        now_ms, next_ms, *rows = await self._call("due_schedules", queue, 100, *passed)
        return now_ms, next_ms, [Schedule(row[1], unpack_schedule(row)) for row in rows]

    async def add_webhook(self, queue: str, url: str, name: str, *, has_fan_out: bool, secrets: Sequence[str]) -> str:
        """Register a webhook, or change the one with this URL and name; returns `created`, `changed` or `same`."""
        args = (webhook_id(url, name), url, name, int(has_fan_out), " ".join(secrets))
        outcome: bytes = await self._put("add_webhook", queue, *args)
        return outcome.decode()

    async def remove_webhook(self, queue: str, id: str) -> bool:
        """Forget a webhook; returns whether there was one."""
        return bool(await self._call("remove_webhook", queue, id) == b"ok")

    async def pause_webhook(self, queue: str, id: str, *, is_paused: bool) -> bool | None:
        """Say whether a webhook is paused; returns whether it was, None if it does not exist."""
        previous = await self._call("pause_webhook", queue, id, int(is_paused))
        return None if previous < 0 else bool(previous)

    async def webhooks(self, queue: str) -> list[Webhook]:
        """Read all webhooks of a queue, the oldest first."""
        flat = await self._call("webhooks", queue)
        found = [unpack_webhook(id, packed) for id, packed in zip(flat[::2], flat[1::2], strict=True)]
        return sorted(found, key=lambda webhook: (webhook.created_at_ms, webhook.id))

    async def wake(self, queue: str) -> None:
        """Tell all servers that there may be work in a queue; the message may be lost."""
        await self.connection.call("SPUBLISH", keys.ready_channel(queue), keys.READY)
