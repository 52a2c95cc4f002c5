"""The scenes of `longest`: what is set up, and which calls are then measured on it.

Names have 128 bytes and ids 255, as long as they may be, but where a million tasks stand in one list. Times that would
take days are given to the functions, which take them where the tests' gate is set.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from fairq.model.schedules import Timing
from fairq.model.tasks import MAX_LINKS, MAX_LINKS_BYTES, RARE_COUNTS, NewTask
from fairq.server.engine.stats.history import PAGE_SLOTS
from fairq.store import keys
from fairq.store.calls import CHANGES, LOOKS
from fairq.store.records import CLAIM_HEAD, pack_options, pack_template, pack_timing, pack_waits
from loadtest.bench import for_all
from loadtest.probe import Args, Prepare, Probe

Q = "longest"
ERROR, TRACEBACK = "e" * 2048, "t" * 8192
SMALL = b'"x"'
CLAIM = 150  # tasks, as servers ask
HALF = b'"' + b"x" * ((1 << 19) - 2) + b'"'
LARGE = b'"' + b"x" * ((1 << 20) - 2) + b'"'
INLINE = b'"' + b"x" * 4094 + b'"'
BATCH_ID = 200  # bytes, not far from the most
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SERVER_TICK = 125  # tasks of each job, as servers ask


def tenant(n: int) -> str:
    """Name a tenant with 128 bytes."""
    return f"t{n:07d}".ljust(128, "x")


def id_of(kind: str, n: int) -> str:
    """Name a task with 255 bytes."""
    return f"{kind}-{n:09d}-".ljust(255, "x")


def wall_ms() -> int:
    """Tell the time."""
    return round(time.time() * 1000)


def chunks(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """Cut into parts."""
    return (items[first : first + size] for first in range(0, len(items), size))


def tasks_of(kind: str, numbers: Iterable[int], payload: bytes = SMALL, **asked: Any) -> list[NewTask]:
    """Make tasks of one kind."""
    return [NewTask(id_of(kind, n), payload, **asked) for n in numbers]


async def enqueue(p: Probe, name: str, tasks: Sequence[NewTask], size: int = 500, queue: str = Q) -> None:
    """Give a tenant tasks."""
    await for_all(chunks(tasks, size), lambda some: p.store.enqueue(queue, name, some))


async def one_each(p: Probe, kind: str, count: int, *, each: int = 1, payload: bytes = SMALL, **asked: Any) -> None:
    """Give each of so many tenants tasks."""
    await for_all(
        range(count),
        lambda n: p.store.enqueue(Q, tenant(n), tasks_of(kind, range(n * each, n * each + each), payload, **asked)),
    )


def flat(tasks: Iterable[NewTask]) -> list[str | bytes]:
    """Return tasks as `enqueue` takes them."""
    return [word for task in tasks for word in (task.id, pack_options(task), task.payload)]


async def claimed(p: Probe, count: int) -> list[tuple[bytes, int]]:
    """Claim so many tasks; ids and lease numbers."""
    found: list[tuple[bytes, int]] = []
    while len(found) < count:
        reply = await p.call("claim", Q, f"claim-{time.monotonic_ns()}", min(CLAIM, count - len(found)), "", "", 1000)
        if len(reply) == CLAIM_HEAD:
            break
        found += [(id, reply[2]) for id in reply[CLAIM_HEAD::4]]
    return found


def settling(p: Probe, action: str, *rest: str | bytes) -> Prepare:
    """Claim, and return what ends these leases so."""

    async def args() -> Args:
        leases = await claimed(p, min(p.sizes.call, LOOKS))
        return [word for id, lease in leases for word in (action, id, lease, *rest)]

    return args


async def crowd(p: Probe) -> None:
    """100,000 tenants, all with tasks."""
    s, c = p.sizes, p.sizes.call
    await one_each(p, "c", s.tenants, each=2)
    where = f"{s.tenants:,} tenants with 2 tasks each"
    count = itertools.count()
    await p.measure("claim", f"{CLAIM} of {where}", Q, _claim(count, CLAIM))
    await p.measure("claim", f"1 of {where}", Q, _claim(count, 1))

    async def joined() -> Args:
        n = next(count)  # of tasks with so long ids, five go into what claims join
        return (f"claim-{n}", CLAIM, "", "", 1000, tenant(0), *flat(tasks_of(f"j{n}", range(5))))

    await p.measure("enqueue_and_claim", f"5, and {CLAIM} of {where}", Q, joined)
    again = []

    async def first() -> Args:
        name = f"again-{next(count)}"
        await p.call("claim", Q, name, c, "", "", 1000)
        again.append(name)
        return (name, c, "again", "", 1000)

    await p.measure("claim", f"again, {CLAIM} of {where}", Q, first)
    for action, rest in (("ack", ("",)), ("nack", ("60000", ERROR, "")), ("nack", ("", ERROR, "")),
                         ("nack", ("0", ERROR, "")), ("reject", (ERROR, TRACEBACK)),
                         ("release", ("", "")), ("extend", ())):  # fmt: skip
        found = f", {rest[0]} ms" if rest and action == "nack" else ""
        await p.measure("settle", f"{LOOKS} {action}{found} of as many tenants", Q, settling(p, action, *rest))
    numbers = iter(range(s.tenants - 1, 0, -1))

    async def ids(count: int = CHANGES) -> Args:
        return [id_of("c", 2 * next(numbers)) for _ in range(count)]

    async def behind(*before: str) -> Args:
        return [*before, *(await ids())]

    await p.measure("tasks", f"{LOOKS} of as many tenants", Q, lambda: ids(min(c, LOOKS)))
    await p.measure("cancel", f"{CHANGES} of as many tenants", Q, lambda: behind(""))
    await p.measure("reschedule", f"{CHANGES} of as many tenants", Q, lambda: behind("60000", "0"))
    await p.measure("tenants", f"a page of {s.tenants:,}", Q, ("0", LOOKS))
    await p.measure("tenants", f"{LOOKS} by name", Q, ("0", LOOKS, *(tenant(n) for n in range(LOOKS))))
    await p.measure("queue_state", where, Q)
    waits = pack_waits(dict.fromkeys(range(61), 1))

    async def counted() -> Args:
        return [0, *(word for n in range(31) for word in (tenant(n), 9, 9, 1, waits))]

    await p.measure("add_history", f"31 of {where}", Q, counted)
    await p.measure("history", "a page", Q, (10, -1, PAGE_SLOTS))
    await p.measure("why", where, Q, (id_of("c", 2 * next(numbers)),))
    await p.measure("permissions", where, Q)
    for limits in (("max_running", "1"), ("max_running", "0"), ("rate", "1"), ("rate", "0")):
        await p.measure("set_limits", f"{' '.join(limits)} for all, {where}", Q, ("", *limits), rounds=1)
    await p.measure("tick", f"the sweep over {s.tenants:,} tenants", Q, (SERVER_TICK, wall_ms()), calls=50)
    await p.measure(
        "set_limits", "all of one tenant", Q, (tenant(0), "max_running", 1, "rate", 1, "burst", 1, "queued", 5)
    )
    await p.measure("forget_tenants", f"200 of {s.tenants:,} tenants", Q, ("0", 200, 0, ""))
    await p.measure("limits", "of one tenant", Q, (tenant(0),))
    await p.measure("set_weight", where, Q, (tenant(1), 5000))
    for paused in (1, 0):
        await p.measure("set_paused", f"{paused}, the queue", Q, ("", paused))
        await p.measure("set_paused", f"{paused}, a tenant", Q, (tenant(2), paused))
    await p.measure("configure", "a reserve, " + where, Q, ("reserve", 20), rounds=1)
    await p.measure(
        "tick", f"the sweep for a reserve, {s.tenants:,} tenants", Q, (SERVER_TICK, wall_ms()), calls=s.tenants // 100
    )
    await p.measure("claim", f"{CLAIM} with a reserve, {where}", Q, _claim(count, CLAIM))
    await p.measure("configure", "no reserve, " + where, Q, ("reserve", 0), rounds=1)
    await p.measure("configure", "share = count, " + where, Q, ("share", 1), rounds=1)
    await p.measure("configure", "share = time, " + where, Q, ("share", 0), rounds=1)
    await p.measure("claim", f"{CLAIM} of all again, {where}", Q, _claim(count, CLAIM))
    await p.measure(
        "repair", f"the longest slice, {where}", Q, ("",), calls=100_000, rounds=1, until=lambda r: r[0] == b"done"
    )
    await deleting(p, f"the longest slice, {where}")


def _claim(count: Iterator[int], limit: int) -> Prepare:
    async def args() -> Args:
        return (f"claim-{next(count)}", limit, "", "", 1000)

    return args


async def rated(p: Probe) -> None:
    """100,000 tenants that are out of tokens."""
    s, c, count = p.sizes, p.sizes.call, itertools.count()
    await p.store.set_limits(Q, "", {"rate": 0.001, "burst": 1})
    await one_each(p, "r", s.tenants, each=2)
    while await claimed(p, c):
        pass
    await p.measure(
        "set_limits", f"a rate for all, {s.tenants:,} tenants out of tokens", Q, ("", "rate", "1000"), rounds=1
    )
    await p.measure("tick", f"{s.tenants:,} tenants that have tokens again", Q, (SERVER_TICK, wall_ms()), calls=100)
    await p.measure("claim", f"{CLAIM} of tenants with a rate", Q, _claim(count, CLAIM))


OPTIONS = {
    "max_attempts": 1000, "expires_in_ms": HOUR_MS, "dedupe_period_ms": HOUR_MS, "result_ttl_ms": HOUR_MS,
    "events": True,
}  # fmt: skip


def featured(
    kind: str, numbers: Iterable[int], payload: bytes, batch: Callable[[int], str], **asked: Any
) -> list[NewTask]:
    """Make tasks that ask for everything."""
    return [
        NewTask(
            id_of(kind, n),
            payload,
            **{**OPTIONS, "priority": n % 100, "dedupe_key": id_of("k", n), "batch": batch(n), **asked},
        )
        for n in numbers
    ]


async def features(p: Probe) -> None:
    """500 tenants with a batch each; tasks that ask for everything."""
    s, c = p.sizes, p.sizes.call
    few = c // RARE_COUNTS
    count, numbers = itertools.count(), itertools.count()

    def batch_of(n: int) -> str:
        return id_of("b", n)[:BATCH_ID]

    made = s.rounds * 14 + 30  # rounds of tasks: 20 are rejected, whatever the sizes

    async def open_all() -> None:
        await for_all(range(c), lambda n: p.store.open_batch(Q, tenant(n), batch_of(n), 1000, (b"", b"", b"")))
        await for_all(
            range(c), lambda n: p.store.open_batch(Q, tenant(0), batch_of(c + n), 0, (SMALL, SMALL, SMALL), events=True)
        )

    await open_all()

    async def all_options(payload: bytes, size: int, **asked: Any) -> list[str | bytes]:
        some = [next(numbers) for _ in range(size)]
        return [tenant(0), *flat(featured("o", some, payload, lambda n: batch_of(c + n % c), **asked))]

    async def plain(payload: bytes, size: int, **asked: Any) -> list[str | bytes]:
        return [tenant(0), *flat(tasks_of("p", (next(numbers) for _ in range(size)), payload, **asked))]

    await p.measure("enqueue", f"{c} plain tasks", Q, lambda: plain(SMALL, c))
    await p.measure("enqueue", f"{c} plain tasks of 4 KiB", Q, lambda: plain(INLINE, c))
    await p.measure("enqueue", f"{c} tasks of 8 KiB", Q, lambda: plain(b'"' + b"x" * 8190 + b'"', c))
    await p.measure("enqueue", "4 tasks of 1 MiB", Q, lambda: plain(LARGE, 4))
    await p.measure("enqueue", f"{c} delayed tasks", Q, lambda: plain(SMALL, c, delay_ms=HOUR_MS))
    await p.measure("enqueue", f"{c} tasks with a priority", Q, lambda: plain(SMALL, c, priority=1))
    await p.measure("enqueue", f"{few} with all options, as many batches", Q, lambda: all_options(SMALL, few))
    await p.measure("enqueue", f"{few} with all options, 4 KiB", Q, lambda: all_options(INLINE, few))
    await p.measure("enqueue", f"{few} with all options, delayed", Q, lambda: all_options(SMALL, few, delay_ms=60_000))
    same = await all_options(INLINE, few)
    await p.call("enqueue", Q, *same)
    await p.measure("enqueue", f"{few} duplicates, 4 KiB", Q, same)
    by_key = [*same]
    for at in range(1, len(by_key), 3):
        by_key[at] = id_of("z", at)
    await p.measure("enqueue", f"{few} duplicates by their keys", Q, by_key)
    await p.start_over()
    await open_all()

    async def fill(rounds: int, payload: bytes = SMALL) -> None:
        for _ in range(rounds):
            await for_all(
                range(c),
                lambda n: p.store.enqueue(Q, tenant(n), featured("f", [next(numbers)], payload, lambda _: batch_of(n))),
            )

    await fill(made)
    what = f"{c} of as many tenants, batches, priorities, with everything"
    await p.measure("claim", what.replace(str(c), str(CLAIM), 1), Q, _claim(count, CLAIM))

    async def again() -> Args:
        name = f"again-{next(count)}"
        await p.call("claim", Q, name, c, "", "", 1000)
        return (name, c, "again", "", 1000)

    await p.measure("claim", f"again, {CLAIM} of these", Q, again)
    result = '"' + "r" * 7900 + '"'
    for action, rest in (("ack", (result,)), ("ack", ("",)),
                         ("nack", ("60000", ERROR, "")), ("nack", ("0", ERROR, "")),
                         ("reject", (ERROR, TRACEBACK)), ("release", ("", "")), ("extend", ())):  # fmt: skip
        shown = f", {rest[0]} ms" if rest and action == "nack" else ", result 8 KB" if rest == (result,) else ""
        rounds = 20 if action == "reject" else 0  # which are replayed and purged then
        await p.measure(
            "settle",
            f"{action}{shown}, {what.replace(str(c), str(LOOKS), 1)}",
            Q,
            settling(p, action, *rest),
            rounds=rounds,
        )

    async def dead(verb: str) -> Args:
        found: Args = await p.command("ZRANGE", f"{keys.queue_prefix(Q)}:deaths", 0, CHANGES - 1)
        return found

    await p.measure("dead", "500, brief", Q, ("", "", 500, "", "", 0, 0, "brief"))
    some = what.replace(str(c), str(CHANGES), 1)
    await p.measure("replay", some, Q, lambda: dead("replay"))
    await p.measure("purge", some, Q, lambda: dead("purge"))

    async def ready(size: int, *before: str) -> Args:
        news = [next(numbers) for _ in range(size)]
        await for_all(
            range(size),
            lambda n: p.store.enqueue(Q, tenant(n), featured("f", [news[n]], SMALL, lambda _: batch_of(n))),
        )
        return [*before, *(id_of("f", n) for n in news)]

    await p.measure("tasks", what.replace(str(c), str(LOOKS), 1), Q, lambda: ready(min(c, LOOKS)))
    await p.measure("cancel", some, Q, lambda: ready(CHANGES, ""))
    await p.measure("reschedule", f"to later, {some}", Q, lambda: ready(CHANGES, "60000", "0"))
    await p.measure("batches", f"{c}", Q, [batch_of(n) for n in range(c)])
    await p.measure("close_batch", "one", Q, lambda: _one(batch_of(next(count) % c)))
    await p.measure("events", "500", Q, (tenant(0), 0, 500))
    await p.measure("open_batch", "callbacks of 64 KB", Q, lambda: _opened(next(count)))
    await p.measure("list_batches", "500, some with callbacks of 64 KB", Q, ("", "", "0", 500))
    await p.measure("tick", "as it is", Q, (SERVER_TICK, wall_ms()))
    await p.measure(
        "repair", "the longest slice of this", Q, ("",), calls=100_000, rounds=1, until=lambda r: r[0] == b"done"
    )
    await deleting(p, "the longest slice of this")


async def deleting(p: Probe, what: str) -> None:
    """Delete the queue."""
    await p.measure(
        "delete_queue", what, Q, ("any",), calls=100_000, rounds=1, until=lambda r: r[0] in (b"ok", b"gone")
    )


async def _one(value: str) -> Args:
    return (value,)


async def _opened(n: int) -> Args:
    callback = b'"' + b"x" * 65_533 + b'"'
    return (tenant(0), id_of("open", n)[:BATCH_ID], 10, callback, callback, callback, "1")


async def payloads(p: Probe) -> None:
    """Long payloads, results and dead letters."""
    s, c, count = p.sizes, p.sizes.call, itertools.count()
    for kind, payload, each in (("4 KiB", INLINE, c), ("1 MiB", LARGE, 20), ("8 KiB", LARGE[:8190] + b'"', c)):
        await p.start_over()
        for n in range(s.rounds * 2 + 4):
            await enqueue(p, tenant(n), tasks_of(f"l{n}", range(each), payload), size=400 if len(payload) < 9000 else 3)
        await p.measure("peek", f"tasks of {kind}", Q, (tenant(0), 500))
        await p.measure("tasks", f"tasks of {kind}", Q, [id_of("l0", n) for n in range(min(each, LOOKS))])
        await p.measure("claim", f"{CLAIM}, tasks of {kind}", Q, _claim(count, CLAIM))

        async def again() -> Args:
            name = f"again-{next(count)}"
            await p.call("claim", Q, name, c, "", "", 1000)
            return (name, c, "again", "", 1000)

        await p.measure("claim", f"again, {CLAIM}, tasks of {kind}", Q, again)
        await p.measure("settle", f"acks, tasks of {kind}", Q, _acks_any(p))
        await p.call("set_paused", Q, "", 0)
        last = s.rounds * 2 + 3
        await p.measure(
            "cancel", f"tasks of {kind}", Q, ["", *(id_of(f"l{last}", n) for n in range(min(each, CHANGES)))], rounds=1
        )
    await p.start_over()
    await enqueue(p, tenant(0), tasks_of("d", range(200), LARGE), size=3)
    while leases := await claimed(p, c):
        await p.call("settle", Q, *(word for id, lease in leases for word in ("reject", id, lease, ERROR, TRACEBACK)))
    await p.measure("dead", "letters of 1 MiB", Q, ("", "", 500, "", "", 0, 0, ""))
    await p.measure("dead_letter", "1 MiB", Q, (id_of("d", 0),))
    await p.measure("replay", "20 letters of 1 MiB", Q, [id_of("d", n) for n in range(20)], rounds=1)
    await p.measure(
        "purge", f"{CHANGES} letters of 1 MiB", Q, [id_of("d", n) for n in range(40, 40 + CHANGES)], rounds=1
    )
    result = b'"' + b"x" * ((1 << 18) - 2) + b'"'
    await p.start_over()
    await enqueue(p, tenant(0), tasks_of("r", range(c), result_ttl_ms=HOUR_MS))
    while leases := await claimed(p, 16):
        await p.call("settle", Q, *(word for id, lease in leases for word in ("ack", id, lease, result)))
    await p.measure("results", f"{c} results of 256 KiB", Q, [id_of("r", n) for n in range(c)])
    await enqueue(p, tenant(0), tasks_of("q", range(15 * s.rounds), result_ttl_ms=HOUR_MS))

    async def fifteen() -> Args:
        return [word for id, lease in await claimed(p, 15) for word in ("ack", id, lease, result)]

    await p.measure("settle", "15 results of 256 KiB", Q, fifteen)


def _acks_any(p: Probe) -> Prepare:
    async def args() -> Args:
        leases = await claimed(p, p.sizes.call)
        return [word for id, lease in leases for word in ("ack", id, lease, "")] or ["ack", "none", 1, ""]

    return args


async def cancelled(p: Probe) -> None:
    """Cancelled and expired tasks, and a hundred priorities, of a tenant."""
    s, c, count = p.sizes, p.sizes.call, itertools.count()
    many = s.many // 2
    for priorities in (1, 100):
        await p.start_over()
        tasks = [NewTask(id_of("v", n), SMALL, priority=n % priorities if priorities > 1 else 50) for n in range(many)]
        await enqueue(p, tenant(0), tasks)
        gone = [task.id for task in tasks[2 * priorities : -1]]
        first, rest = gone[: s.rounds * CHANGES], gone[s.rounds * CHANGES :]
        parts = iter([["", *first[at : at + CHANGES]] for at in range(0, len(first), CHANGES)])

        async def some(parts: Iterator[Args] = parts) -> Args:
            return next(parts)

        await p.measure("cancel", f"{CHANGES} of one tenant, {priorities} priorities, {many:,} tasks", Q, some)
        await for_all(chunks(rest, CHANGES), lambda part: p.call("cancel", Q, "", *part))
        where = f"{many:,} cancelled, {priorities} priorities"
        await p.measure("peek", where, Q, (tenant(0), 500))
        await p.measure("why", where, Q, (tasks[-1].id,))
        await p.measure("oldest", where, Q, (100,))
        await p.measure("claim", where, Q, _claim(count, CLAIM), calls=10)
        await p.measure("enqueue", f"{c} behind {where}", Q, (tenant(0), *flat(tasks_of("w", range(c)))), rounds=1)
    await p.start_over()

    async def leveled(n: int) -> None:
        tasks = [NewTask(id_of("y", n * 100 + priority), SMALL, priority=priority) for priority in range(100)]
        await p.store.enqueue(Q, tenant(n), tasks)

    await for_all(range(c), leveled)
    where = f"{c} of as many tenants with 100 priorities each"
    await p.measure("claim", where.replace(str(c), str(CLAIM), 1), Q, _claim(count, CLAIM))
    await p.measure("peek", where, Q, (tenant(0), 500))
    await p.measure("oldest", where, Q, (500,))
    numbers = iter(range(10_000))

    async def last() -> Args:
        priority = 99 - next(numbers)
        return ["", *(id_of("y", n * 100 + priority) for n in range(CHANGES))]

    await p.measure("cancel", where.replace(str(c), str(CHANGES), 1), Q, last)
    await p.measure("settle", f"release, {where}", Q, settling(p, "release", "", ""))
    await p.start_over()
    await enqueue(p, tenant(0), tasks_of("e", range(s.many // 10), expires_in_ms=2_000))
    await one_each(p, "x", c, each=20, expires_in_ms=3_000)
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    later = wall_ms() + DAY_MS
    await p.measure(
        "claim",
        f"over {s.many // 10:,} expired tasks of a tenant, 20 each of {c}",
        Q,
        _claim(count, CLAIM),
        calls=20,
        now=later,
    )


async def due(p: Probe) -> None:
    """Everything is due at once."""
    s, _c = p.sizes, p.sizes.call
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    await p.store.configure(Q, {"dead_keep_ms": 1000, "lease_ms": 1000, "max_attempts": 1})
    # dead letters, which are too old; dead by 2 KiB errors
    dead = s.many // 5
    await for_all(range(100), lambda n: enqueue(p, tenant(n), tasks_of(f"dd{n}", range(dead // 100), events=True)))
    while leases := await claimed(p, 500):
        await p.call("settle", Q, *(word for id, lease in leases for word in ("reject", id, lease, ERROR, TRACEBACK)))
    # marks, results and keys
    await for_all(range(100), lambda n: enqueue(p, tenant(n), tasks_of(f"m{n}", range(s.many // 100))))
    while leases := await claimed(p, 500):
        await p.call("settle", Q, *(word for id, lease in leases for word in ("ack", id, lease, "")))
    for n in range(100):
        keyed = [
            NewTask(id_of(f"k{n}", i), SMALL, dedupe_key=id_of(f"k{n}", i), dedupe_period_ms=1000)
            for i in range(s.many // 500)
        ]
        await enqueue(p, tenant(n), keyed)
    # leases that expire: groups of 500, and extended ones
    await for_all(range(100), lambda n: enqueue(p, tenant(n), tasks_of(f"g{n}", range(s.many // 500), events=True)))
    for _ in range(10):
        if not (leases := await claimed(p, min(500, s.many // 50))):
            break
        await p.call(
            "settle", Q, *(word for id, lease in leases[: len(leases) // 2 or 1] for word in ("extend", id, lease))
        )
    # delayed tasks of many tenants and of one, and opening hours that close
    for n in range(100):
        await enqueue(p, tenant(n), tasks_of(f"del{n}", range(s.many // 100), delay_ms=5_000))
    for n in range(100):
        await enqueue(p, tenant(n), tasks_of(f"exp{n}", range(s.many // 100), expires_in_ms=5_000, events=True))
    # batches: one that was cancelled, and complete ones
    await p.store.open_batch(Q, tenant(0), "big", 10, (b"", b"", b""))
    await enqueue(p, tenant(0), tasks_of("big", range(s.many), batch="big"))
    await p.measure("close_batch", f"cancelled, of {s.many:,} tasks, pending", Q, ("big", "cancel"), rounds=1)
    for n in range(min(2_000, s.many)):
        await p.store.open_batch(Q, tenant(n), f"empty-{n}", 0, (b"", b"", b""))
        await p.store.close_batch(Q, f"empty-{n}")
    later = wall_ms() + 2 * DAY_MS
    await p.measure("tick", f"{s.many:,} delayed, expired, marks, of a batch; {dead:,} dead; leases, keys, batches",
        Q, (SERVER_TICK, later), calls=20, now=later)  # fmt: skip
    await p.measure("tick", "the same, limit 500", Q, (500, later), calls=20, now=later)


async def herd(p: Probe) -> None:
    """Delayed tasks: one of each of 100,000 tenants, and 100,000 of one; leases of as many tenants."""
    s, _c = p.sizes, p.sizes.call
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    await one_each(p, "h", s.tenants, delay_ms=5_000)
    later = wall_ms() + DAY_MS
    await p.measure(
        "tick", f"a delayed task each of {s.tenants:,} tenants", Q, (SERVER_TICK, later), calls=50, now=later
    )
    await p.start_over()
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    await enqueue(p, tenant(0), tasks_of("h", range(s.many), delay_ms=5_000))
    await p.measure("tick", f"{s.many:,} delayed tasks of one tenant", Q, (SERVER_TICK, later), calls=50, now=later)
    await p.start_over()
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    tenants = min(10_000, s.tenants)
    await one_each(p, "g", tenants, events=True)
    while leases := await claimed(p, 500):
        await p.call("settle", Q, *(word for id, lease in leases[::2] for word in ("extend", id, lease)))
    what = f"{tenants:,} leases run out, half of them extended, a task of each tenant"
    await p.measure("tick", what, Q, (SERVER_TICK, later), calls=20, now=later)
    await p.start_over()
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    await one_each(p, "g", tenants)
    while await claimed(p, 1):  # as many groups
        pass
    await p.measure("tick", f"{tenants:,} leases run out, as many claims", Q, (SERVER_TICK, later), calls=20, now=later)
    await p.start_over()
    await p.command("SET", f"{keys.queue_prefix(Q)}:test", 1)
    await enqueue(p, tenant(0), tasks_of("g", range(min(150, s.rounds * 30) * CLAIM)))
    while leases := await claimed(p, CLAIM):
        await p.call("settle", Q, *(word for id, lease in leases[1:] for word in ("ack", id, lease, "")))
    await p.measure(
        "tick", f"leases run out, one left of each claim of {CLAIM}", Q, (SERVER_TICK, later), calls=5, now=later
    )


async def graves(p: Probe) -> None:
    """100,000 dead letters."""
    s, c = p.sizes, p.sizes.call
    await p.store.configure(Q, {"dead_keep": 10 * s.many})
    for n in range(100):
        await enqueue(p, tenant(n), tasks_of(f"a{n}", range(s.many // 100)))
    while leases := await claimed(p, 500):
        await p.call("settle", Q, *(word for id, lease in leases for word in ("reject", id, lease, ERROR, TRACEBACK)))
    where = f"{s.many:,} dead letters"
    await p.measure("dead", f"no letter matches, {where}", Q, ("", "", 500, "", "nowhere", 0, 0, ""))
    await p.measure("dead", f"a page of 500, {where}", Q, ("", "", 500, "", "", 0, 0, ""))
    page = await p.call("dead", Q, "", "", 500, "", "", 0, 0, "")
    await p.measure("dead", f"the second page, {where}", Q, ("", page[0], 500, "", "", 0, 0, ""))
    await p.measure("dead_letter", where, Q, (id_of("a0", 0),))
    deaths = f"{keys.queue_prefix(Q)}:deaths"

    async def some() -> Args:
        drawn: Args = await p.command("ZRANDMEMBER", deaths, CHANGES)
        return drawn

    await p.measure("replay", f"{CHANGES} of {where}", Q, some)
    await p.measure("purge", f"{CHANGES} of {where}", Q, some)
    await p.measure("configure", f"keep 10, {where}", Q, ("dead_keep", 10), rounds=1)
    await p.measure("tick", f"too many dead letters: {where}", Q, (SERVER_TICK, wall_ms()), calls=50)
    await p.store.set_limits(Q, "", {"dead": 10})
    rejecting = settling(p, "reject", ERROR, TRACEBACK)
    await p.measure("settle", f"{c} reject with a limit of dead letters", Q, rejecting, rounds=1)


async def summed(p: Probe) -> None:
    """A batch's callback reads what its tasks have returned."""
    count = p.sizes.call
    await p.store.open_batch(Q, tenant(0), "sum", 0, (SMALL, b"", b""))
    await enqueue(p, tenant(0), tasks_of("sum", range(count), batch="sum", result_ttl_ms=DAY_MS))
    leases = await claimed(p, count)
    for some in chunks(leases, 10):
        await p.call("settle", Q, *(word for id, lease in some for word in ("ack", id, lease, "1" * 1_000)))
    await p.store.close_batch(Q, "sum")
    ((id, lease),) = await claimed(p, 1)
    await p.measure("batch_results", f"of {count:,}", Q, (id, lease, "0"))


async def feeds(p: Probe) -> None:
    """A long feed that is to be shorter."""
    s = p.sizes
    feed = f"{keys.queue_prefix(Q)}:events:{tenant(0)}"
    await enqueue(p, tenant(0), tasks_of("ev", range(100), events=True))
    await p.store.configure(Q, {"events_keep": 1_000_000})
    for part in chunks(range(1, s.listed), 200):
        await for_all(
            part,
            lambda n: p.command(
                "XADD", feed, f"0-{n}", "event", "done", "id", id_of("ev", n), "at", "1", "attempt", 1, "detail", ""
            ),
        )
    await p.measure("events", f"500 of {s.listed:,}", Q, (tenant(0), 0, 500))
    await p.measure("configure", f"keep 10 events of {s.listed:,}", Q, ("events_keep", 10), rounds=1)
    leases = await claimed(p, 10)
    await p.measure("settle", "the first event then", Q, ["ack", leases[0][0], leases[0][1], ""], rounds=1)


async def calendar(p: Probe) -> None:
    """Schedules and opening hours."""
    s, _c = p.sizes, p.sizes.call
    count = min(1_000, s.many)
    now = wall_ms()

    async def put(name: str, n: int, payload: bytes, **asked: Any) -> None:
        task = NewTask("", payload, **asked)
        timing = Timing(cron="*/1 * * * *" + "," * 0, zone="UTC")
        await p.store.schedule(Q, name, f"s{n:05d}".ljust(63, "x"), timing, now + 1, "once", task, app="app")

    await for_all(range(count), lambda n: put(tenant(0), n, SMALL, **OPTIONS, dedupe_key=id_of("k", n)))
    await for_all(range(200), lambda n: put(tenant(1), n, LARGE))
    await p.measure("schedules", f"{count:,} of a tenant", Q, (tenant(0), "", 0, 500))
    await p.measure("schedules", "a page of 500 of all", Q, ("", "", 0, 500))
    await p.measure("declared", f"of {count + 200:,}", Q, ("app",))
    await p.measure("schedules", "one, 1 MiB", Q, (tenant(1), "s00001".ljust(63, "x"), 0, 1))
    fresh = itertools.count()

    async def new(size: bytes = LARGE) -> Args:
        return (
            tenant(2),
            f"n{next(fresh)}",
            now + DAY_MS,
            1,
            pack_timing(Timing(every_ms=1000)),
            pack_template(NewTask("", size)),
        )

    await p.measure("schedule", "1 MiB", Q, new)
    revision = (await p.call("schedules", Q, tenant(2), "n0", 0, 1))[1][1]
    await p.measure("pause_schedule", "one", Q, (tenant(2), "n0", revision, now + DAY_MS), rounds=1)
    await p.measure("unschedule", "1 MiB", Q, lambda: _pair(tenant(2), f"n{next(fresh) - s.rounds}"))

    def firing(name: str) -> Prepare:
        async def args() -> Args:
            rows = [row for row in (await p.call("schedules", Q, name, "", 0, 500))[1:]]
            dues = [row for row in rows if len(row) > 1][:100]
            return [word for row in dues for word in (row[0], row[1], wall_ms() + 2)]

        return args

    await p.measure("due_schedules", "100 due ones", Q, (100,))
    await p.measure("fire", "100 with all options", Q, firing(tenant(0)))
    await p.measure("fire", "100 of 1 MiB", Q, firing(tenant(1)))
    await p.measure("set_opening_hours", "a tenant", Q, (tenant(0), "x" * 1000, "1", now - 1, ""))
    await for_all(range(100), lambda n: p.call("set_opening_hours", Q, tenant(n), "x" * 1000, "1", now - 1, ""))
    await p.measure("opening_hours", "100 that are to change", Q)
    await p.measure("tick", f"{count:,} schedules and 100 opening hours due", Q, (SERVER_TICK, wall_ms()))


async def _pair(one: str, other: str) -> Args:
    return (one, other)


def _walk(p: Probe, error: str, *, is_cancelling: bool = False) -> Prepare:
    """Go on with a walk over the waiting tasks of a tenant; or return the ids that its first page found."""
    cursor = b""

    async def args() -> Args:
        nonlocal cursor
        place, _, _, *ids = await p.call("waiting_tasks", Q, "lone", cursor, 0, error)
        if is_cancelling:
            some: Args = ["waiting", *ids[:CHANGES]]
            return some
        at, cursor = cursor, place
        return ("lone", at, 0, error)

    return args


async def one_tenant(p: Probe) -> None:
    """A tenant with a million tasks."""
    s, c, count = p.sizes, p.sizes.call, itertools.count()

    def short(n: int) -> str:
        return f"{n:09d}"

    async def fill() -> None:
        tasks = [NewTask(short(n), SMALL) for n in range(s.listed)]
        for part in chunks(tasks, 100_000):
            await enqueue(p, "lone", part)

    await fill()
    where = f"{s.listed:,} tasks of one tenant"
    await p.measure("claim", f"{CLAIM} of {where}", Q, _claim(count, CLAIM))
    await p.measure("settle", f"{c} acks of {where}", Q, settling(p, "ack", ""))
    await p.measure("settle", f"{c} release of {where}", Q, settling(p, "release", "", ""))
    await p.measure("why", f"in the middle of {where}", Q, (short(s.listed // 2),))
    middle = iter(range(s.listed // 2, s.listed))

    async def some() -> Args:
        return ["", *(short(next(middle)) for _ in range(CHANGES))]

    await p.measure("cancel", f"{CHANGES} in the middle of {where}", Q, some)
    await p.measure("waiting_tasks", f"the first of {where}", Q, ("lone", "", 0, ""))
    await p.measure("waiting_tasks", f"by their errors, all along {where}", Q, _walk(p, "e" * 100), calls=100)
    await p.measure("cancel", f"{CHANGES} that wait, of {where}", Q, _walk(p, "", is_cancelling=True))
    await p.measure("drop_tenant", f"refused, {where}", Q, ("lone",))
    for _ in range(20):
        await claimed(p, c)
    await p.measure(
        "repair", f"the longest slice, {where}", Q, ("",), calls=1_000_000, rounds=1, until=lambda r: r[0] == b"done"
    )
    await p.measure("begin_turn", where, Q, ("change", 60_000))
    await p.measure("end_turn", where, Q, ("change",))
    await p.measure("make_queue", "made before", Q)
    await p.measure("add_queue", "one", keys.REGISTRY, lambda: _queue(next(count)))
    change = ("token", "token", "verb", "set_weight", "queue", Q, "tenant", "lone", "target", "x" * 4_000)
    await p.measure("begin_change", "one", keys.AUDIT, change)
    await p.measure("end_change", "one", keys.AUDIT, ("0-0", *change, "ended", "x" * 2_000))
    await p.measure("forget_queue", f"only asked, {where}", Q, (0, 0, "", 0))
    entry = await p.command("HGET", keys.QUEUES, Q)
    await deleting(p, f"the longest slice, {where}")
    await p.measure("remove_queue", where, keys.REGISTRY, (Q, entry), rounds=1)


async def webhooks(p: Probe) -> None:
    """As many webhooks as a queue may have."""
    await enqueue(p, tenant(0), tasks_of("first", range(1)))

    def webhook(n: int) -> Args:
        url = f"https://a.example/{n}".ljust(1_000, "u")
        return (f"{n:08x}", url, "" if n < 15 else "other", int(n < 15), f"whsec_{'s' * 88} " * 4)

    for n in range(60):
        await p.call("add_webhook", Q, *webhook(n))
    last = iter(range(60, 64))

    async def added() -> Args:
        return webhook(next(last))

    await p.measure("add_webhook", "one of 64", Q, added, rounds=4)
    await p.measure("webhooks", "all 64", Q)
    await p.measure("pause_webhook", "one of 64", Q, ("00000000", 1), rounds=1)
    gone = iter(range(63, 0, -1))

    async def removed() -> Args:
        return (f"{next(gone):08x}",)

    await p.measure("remove_webhook", "one of 64", Q, removed)


async def _queue(n: int) -> Args:
    return (f"q{n}".ljust(63, "x"), tenant(0), 1_000_000)


Scene = Callable[[Probe], Awaitable[None]]


async def linked(p: Probe) -> None:
    """Acknowledgements with links."""
    count = itertools.count()
    await enqueue(p, tenant(0), tasks_of("o", range(500 + 4 * p.sizes.rounds)))

    async def ack(payload: bytes) -> Args:
        ((id, lease),) = await claimed(p, 1)
        links = [(f"{tenant(0)}/l-{next(count)}", b"", payload) for _ in range(MAX_LINKS)]
        return [id, lease, b"null", *(word for link in links for word in link)]

    most = b"1" * (MAX_LINKS_BYTES // MAX_LINKS)
    await p.measure("settle_linked", f"{MAX_LINKS} links", Q, lambda: ack(b"1"))
    await p.measure("settle_linked", f"{MAX_LINKS} links, 1 MiB", Q, lambda: ack(most))


SCENES: tuple[Scene, ...] = (
    linked,
    crowd,
    rated,
    features,
    payloads,
    cancelled,
    due,
    herd,
    graves,
    summed,
    feeds,
    calendar,
    one_tenant,
    webhooks,
)
