"""A script of requests about a queue, which is carried out on two: every verb, by tenants and all roles."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field

from fairq.server.run import Served
from tests.store.waiting import wait_until

from .harness import OPERATOR, PRODUCER, WORKER, Raw, Refused, tenant

WHOLE, PARTED = QUEUES = "whole", "parts"
TENANTS = [f"t{n}" for n in range(8)]
TOKENS = {"operator": OPERATOR, "producer": PRODUCER, "worker": WORKER, "t0": tenant("t0"), "t5": tenant("t5")}
DAY_MS = 86_400_000
URL = "https://example.org/hook"

# A tenant's due is compared with those of its partition, and only a queue with several lists them.
_OWN = {"places", "partitions", "entitled", "free", "entitled_part", "free_part"}
_TIMED = {"p50_ms", "p99_ms", "parts"}  # for how long tasks waited, and for what
_IS_THERE = {"cursor", "lease", "number", "server", "version"}  # and times: they differ from run to run


def plain(answer: Any, key: str = "") -> Any:
    """Return what both queues must answer alike. Rows are sorted, for those of some lists come in any order."""
    if isinstance(answer, Mapping):
        return {name: plain(value, name) for name, value in answer.items() if name not in _OWN | _TIMED}
    if key.endswith("_ms") or key in _IS_THERE:
        return bool(answer)
    if isinstance(answer, list) and answer and isinstance(answer[0], int | float):  # by minute: counts, or shares
        return sum(answer) if isinstance(answer[0], int) else True
    if isinstance(answer, list):
        return sorted(map(plain, answer), key=json.dumps)
    if isinstance(answer, str):
        return re.sub(r"-\d{13}", "", answer.replace(PARTED, WHOLE))  # of a callback's id
    return answer


@define(eq=False)
class Both:
    """Both queues, with connections by token and queue; `pushed`: by queue, what its worker holds, by full id."""

    servers: list[Served]
    clients: dict[tuple[str, str], list[Raw]] = field(factory=dict)
    asked: set[str] = field(factory=set)
    pushed: dict[str, dict[str, Any]] = field(factory=lambda: {queue: {} for queue in QUEUES})

    def client(self, who: str, queue: str) -> Raw:
        """Return a connection: to each server in turn."""
        clients = self.clients[who, queue]
        clients.append(clients.pop(0))
        return clients[-1]

    @property
    def workers(self) -> list[Raw]:
        """The worker of each queue."""
        return [self.clients["worker", queue][0] for queue in QUEUES]

    async def ask(self, who: str, verb: str, /, own: Callable[[str], Any] = lambda _: {}, **body: Any) -> Any:
        """Send a request about each queue, and compare the answers; `own`: what differs in it."""
        self.asked.add(verb)
        answers = [await self.answer(who, verb, queue, body | own(queue)) for queue in QUEUES]
        self.compare((who, verb, body), *answers)
        return answers[0]

    async def answer(self, who: str, verb: str, queue: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request about one queue; returns its reply, or why it was refused."""
        try:
            return await self.client(who, queue).ask(verb, queue=queue, **body)
        except Refused as refused:
            return {"refused": str(refused)}

    async def read_pages(self, verb: str) -> None:
        """Read a list two rows at a time, and compare all rows."""
        self.compare(verb, *[await self.pages(verb, queue) for queue in QUEUES])

    async def pages(self, verb: str, queue: str) -> dict[str, list[Any]]:
        """Read a list of a queue two rows at a time."""
        found: dict[str, list[Any]] = {"rows": [], "away": []}
        cursor, is_over = None, False
        while not is_over:
            page = await self.client("operator", queue).ask(verb, queue=queue, count=2, cursor=cursor)
            found["rows"] += page[verb]
            found["away"] += page["away"]
            cursor = page["cursor"]
            is_over = not cursor
        return found

    def compare(self, what: object, whole: Any, parted: Any) -> None:
        """Compare what both queues say."""
        one, other = json.dumps(plain(whole)), json.dumps(plain(parted))
        assert other == one, f"{what}:\n{one}\n{other}"

    async def offer(self, slots: int) -> None:
        """Change the credit of both workers, and wait until all servers know of it."""
        for worker in self.workers:
            await worker.ask("credit", credit=slots)
        await self.until(lambda at: at.app.queues.count_divided_slots(PARTED) == slots)

    async def until(self, holds: Callable[[Served], bool]) -> None:
        """Wait until something holds at all servers."""
        await wait_until(lambda: all(map(holds, self.servers)))

    async def work(self, count: int) -> None:
        """Wait until so many more tasks are pushed, and counted."""
        new = {queue: await worker.pushed(count) for queue, worker in zip(QUEUES, self.workers, strict=True)}
        for worker in self.workers:
            await worker.quiet()
        self.compare("pushed", *new.values())
        for queue, tasks in new.items():
            self.pushed[queue] |= {re.sub(r"-\d{13}", "", task["full_id"]): task for task in tasks}

    async def settle(self, action: str, which: str, **more: Any) -> None:
        """End the leases of the tasks with ids that match."""

        def ends(queue: str) -> dict[str, Any]:
            mine = [task for id, task in sorted(self.pushed[queue].items()) if re.fullmatch(which, id)]
            return {
                "settlements": [{"action": action, "id": at["full_id"], "lease": at["lease"], **more} for at in mine]
            }

        assert ends(WHOLE)["settlements"]
        await self.ask("worker", "settle", ends)

    def lease(self, queue: str, id: str) -> dict[str, Any]:
        """Name the lease of a task that is held."""
        task = self.pushed[queue][id]
        return {"id": task["full_id"], "lease": task["lease"]}


def tasks(name: str, **options: Any) -> list[dict[str, Any]]:
    """One task of each tenant."""
    return [{"tenant": each, "id": f"{each}-{name}", "payload": {"of": each}, **options} for each in TENANTS]


async def set_up(both: Both) -> None:
    settings = {"max_attempts": 3, "retry_base_ms": 1, "share": "count", "lease_ms": 600_000}
    await both.ask("operator", "configure", settings=settings)
    await both.ask("operator", "configure", settings=settings, if_version="0123456789ab")
    for weight in (4, 3):
        await both.ask("operator", "set_weight", tenant="t1", weight=weight)
    for limits in ({"max_running": 50}, {"max_waiting": 100}, {"guaranteed": 1}):
        for name in (None, "t1"):
            await both.ask("operator", "set_limits", tenant=name, limits=limits)
    for name in (None, "t2"):
        await both.ask("operator", "set_opening_hours", tenant=name, opening_hours="mon-sun 0:00-24:00 UTC")
    await both.ask("operator", "add_webhook", url=URL, secrets=["x" * 32])
    await both.ask("operator", "webhooks")
    await both.ask("operator", "set_webhook_paused", url=URL, paused=True)
    await both.ask("operator", "webhooks")
    for _ in range(2):
        await both.ask("operator", "remove_webhook", url=URL)


async def fill(both: Both) -> None:
    for _ in range(2):
        await both.ask("producer", "enqueue", tasks=tasks("a"))
    await both.ask("producer", "enqueue", tasks=tasks("later", delay_ms=DAY_MS))
    rare = {"dedupe_key": "k", "result_ttl_ms": 600_000, "events": True, "priority": 1}
    await both.ask("producer", "enqueue", tasks=tasks("rare", **rare))
    await both.ask("producer", "enqueue", tasks=tasks("again", dedupe_key="k"))
    await both.ask("producer", "enqueue", tasks=tasks("grouped", group="g"))
    for who in ("t0", "t5"):
        await both.ask(who, "open_batch", id="b", on_complete={"is": "over"}, on_complete_name="called", events=True)
        some = [{"id": f"b{n}", "payload": n, "batch": "b", "result_ttl_ms": 600_000} for n in range(3)]
        await both.ask(who, "enqueue", tasks=some)
        await both.ask(who, "close_batch", id="b")
        await both.ask(who, "open_batch", id="c")
        await both.ask(who, "enqueue", tasks=[{"id": "c0", "payload": 1, "batch": "c"}])
        await both.ask(who, "batches")
        await both.ask(who, "cancel_batch", id="c")


async def look(both: Both, *names: str) -> None:
    """Ask all that only reads, as a tenant and as an operator."""
    ids = [f"{each}/{each}-{name}" for each in TENANTS for name in ("a", "later", "rare", *names)]
    await both.ask("producer", "tasks", ids=[*ids, "t1/none"])
    await both.ask("producer", "wait_tasks", ids=["t1/t1-rare", "t5/b1", "t6/none"])
    for who in ("t0", "t5"):
        await both.ask(who, "tasks", ids=[f"{who}-a", "b1"])
        await both.ask(who, "why", id=f"{who}-later")
        await both.ask(who, "batch", id="b")
        for verb in ("batches", "events", "peek", "report", "limits", "schedules", "dead", "tenants"):
            await both.ask(who, verb)
    for id in [*ids, "t1/none"]:
        await both.ask("operator", "why", id=id)
    for name in ("t0", "t1", "t5", "nobody"):
        for verb in ("tenants", "limits", "peek", "report", "events", "schedules", "attempts", "dead", "batches"):
            await both.ask("operator", verb, tenant=name)
    for verb in (
        "queues",
        "tenants",
        "limits",
        "attempts",
        "batches",
        "dead",
        "schedules",
        "history",
        "webhooks",
        "peek",
    ):
        await both.ask("operator", verb)
    await both.ask("operator", "batches", state="open")
    await both.ask("operator", "batches", ids=["t0/b", "t5/b", "t5/none"])
    await both.ask("operator", "history", tenants=["t1", "t5"])
    await both.ask("operator", "schedules", offset=3, count=2)
    await both.ask("operator", "schedules", tenant="t1", name="hourly")
    for verb in ("dead", "batches", "tenants"):
        await both.read_pages(verb)
    await both.ask("operator", "dead", error="42", tenant="t2")
    await both.ask("operator", "dead", error="43")
    await both.ask("operator", "attempts", state="failed", error="42")
    for id in ("t2/t2-a", "t1/none"):
        await both.ask("operator", "dead_letter", id=id)


async def change(both: Both) -> None:
    for name in (None, "t3"):
        for paused in (True, True, False, False):
            await both.ask("operator", "set_paused", tenant=name, paused=paused)
            await both.ask("operator", "why", id="t3/t3-a")
            await both.ask("operator", "queues")
    later = ["t1/t1-later", "t2/t2-later", "t2/none"]
    await both.ask("producer", "reschedule", ids=later, delay_ms=2 * DAY_MS)
    await both.ask("producer", "cancel", ids=[*later[1:], "t6/t6-a"])
    await both.ask("producer", "reschedule", ids=later)
    for dry_run in (True, False):
        await both.ask("operator", "cancel_all", tenant="t4", dry_run=dry_run)


async def schedule(both: Both) -> None:
    for each in TENANTS:
        await both.ask("producer", "schedule", tenant=each, name="hourly", payload={"x": 1}, every_ms=3_600_000)
    await both.ask("producer", "schedule", tenant="t1", name="hourly", payload={"x": 1}, every_ms=7_200_000)
    await both.ask("operator", "set_schedule_paused", tenant="t1", name="hourly", paused=True)
    for _ in range(2):
        await both.ask("producer", "unschedule", tenant="t3", name="hourly")


async def run(both: Both) -> None:
    (row,) = (await both.ask("operator", "queues"))["queues"]
    for queue, worker in zip(QUEUES, both.workers, strict=True):
        await worker.attach(queue, credit=0, name=f"w-{queue}")
    await both.offer(100)
    await both.work(row["ready"])
    await both.offer(row["ready"])  # all are in use
    await both.ask("producer", "enqueue", tasks=tasks("more"))
    await look(both, "more")
    await both.offer(100)
    await both.work(len(TENANTS))
    half = {"fraction": 0.5, "text": "half"}
    await both.ask("worker", "progress", lambda queue: {"reports": [both.lease(queue, "t0/t0-a") | half]})
    leases = [f"{each}/{each}-a" for each in ("t0", "t5")]
    linked = [{"id": f"linked{n}", "payload": n} for n in range(2)]
    await both.ask(
        "worker",
        "enqueue_from",
        lambda queue: {"leases": [{"queue": queue, **both.lease(queue, id)} for id in leases]},
        tasks=linked,
    )
    await both.settle("ack", ".*-rare|.*/b.", result={"r": 1})
    await both.settle("ack", ".*-grouped")
    await both.settle("reject", "t[0-3]/.*-a", error="bad input 42", traceback="line 1")
    await both.settle("nack", "t[57]/.*-a", error="once", delay_ms=DAY_MS)
    await both.settle("ack", "t7/.*-a")
    await both.work(4)  # those linked, and the callbacks of two batches
    await both.ask("worker", "batch_results", lambda queue: both.lease(queue, "t0/b-complete"))
    await both.ask("worker", "batch_results", lambda queue: both.lease(queue, "t5/b-complete"))


async def tidy(both: Both) -> None:
    await both.ask("operator", "replay", ids=["t0/t0-a", "t1/t1-a", "t1/none"])
    await both.work(2)
    await both.ask("operator", "purge", ids=["t2/t2-a", "t1/t1-a", "t1/none"])
    await both.ask("operator", "repair")
    for verb in ("queues", "tenants", "dead"):
        await both.ask("operator", verb)


async def delete(both: Both) -> None:
    for name in ("t1", "nobody"):
        await both.ask("operator", "drop_tenant", tenant=name)
    for purge in (False, True, True):
        await both.ask("operator", "delete_queue", purge=purge)
    await both.ask("operator", "queues")
