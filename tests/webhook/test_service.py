"""The service on a real server: it posts to what is registered, follows changes, and ends when it should."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from attrs import define, evolve, field

from fairq.client.client import Client
from fairq.errors import SettingsError, Unauthorized, Unavailable
from fairq.model.checks import MAX_WORKER_CHARS
from fairq.server.run import Served
from fairq.webhook import service as module
from fairq.webhook.addresses import AddressRules
from fairq.webhook.registrations import Policy
from fairq.webhook.service import Asked, WebhookService, open_service, open_worker
from tests import stores
from tests.server.conftest import DEADLINE_S
from tests.server.harness import WORKER, Raw, url_of
from tests.store.waiting import wait_until

from .harness import DELIVERY, LOOPBACK, listening
from .receiver import Receiver, Reply, Request, reply

POLICY = Policy(LOOPBACK, unsigned=True)
YEAR_MS = 365 * 86_400_000


@define(eq=False)
class Case:
    """A server, its operator, a tenant, and a receiver."""

    served: Served
    operator: Raw
    ada: Raw
    receiver: Receiver
    port: int

    def url(self, path: str = "in", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/{path}"

    def asked(self, *queues: str, **more: Any) -> Asked:
        """What a worker for these queues is asked for."""
        given = Asked(queues or ("q",), POLICY, DELIVERY, url_of(self.served), WORKER, 2, None)
        return evolve(given, **more)

    async def add(self, queue: str = "q", path: str = "in", **more: Any) -> None:
        await self.operator.ask("add_webhook", queue=queue, url=self.url(path), **more)

    async def pause(self, paused: bool) -> None:
        """Pause the webhook of queue q, or resume it, and wait until its worker has left or come."""
        await self.operator.ask("set_webhook_paused", queue="q", url=self.url(), paused=paused)
        await wait_until(lambda: self.is_worked == (not paused))

    @property
    def is_worked(self) -> bool:
        """True if a worker is attached."""
        return any(connection.queues for connection in self.served.app.connections)

    async def posted(self, *bodies: bytes) -> None:
        """Wait until these were posted, in any order."""
        await wait_until(lambda: len(self.receiver.requests) >= len(bodies))
        assert sorted(request.body for request in self.receiver.requests) == sorted(bodies)


@pytest.fixture
async def case(served: Served, operator: Raw, ada: Raw, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Case]:
    """A server and a receiver; the service looks at its webhooks all the time."""
    monkeypatch.setattr(module, "READ_S", 0.01)
    receiver = Receiver()
    async with listening(receiver) as port:
        with trio.fail_after(DEADLINE_S):
            yield Case(served, operator, ada, receiver, port)


@define(eq=False)
class Run:
    """A service that runs; its `client` may be replaced before."""

    service: WebhookService
    ended: trio.Event = field(factory=trio.Event)

    async def begin(self, burst: bool, task_status: trio.TaskStatus[None]) -> None:
        await self.service.run(burst=burst, task_status=task_status)
        self.ended.set()


@asynccontextmanager
async def serving(
    asked: Asked, *, burst: bool = False, change: Callable[[WebhookService], object] = lambda _: None
) -> AsyncIterator[Run]:
    """Run a service while the context lasts."""
    async with open_service(asked) as service, trio.open_nursery() as nursery:
        change(service)
        run = Run(service)
        await nursery.start(run.begin, burst)
        yield run
        nursery.cancel_scope.cancel()


async def test_a_pause_keeps_tasks_and_a_resume_posts_them(case: Case) -> None:
    await case.add()
    async with serving(case.asked()):
        await case.ada.enqueue("q", ["a"])
        await case.posted(b'"a"')
        await case.pause(True)
        await case.ada.enqueue("q", ["b"])
        await case.pause(False)
        await case.posted(b'"a"', b'"b"')


@define(eq=False)
class Between:
    """A client that does something between a reply of the server and its caller."""

    service: WebhookService
    do: Callable[[WebhookService], Awaitable[None]]
    inner: Client = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.inner, self.service.client = self.service.client, self  # type: ignore[assignment]

    async def request(self, *args: Any, **more: Any) -> Any:
        """Make a request."""
        reply = await self.inner.request(*args, **more)
        await self.do(self.service)
        return reply


@pytest.mark.parametrize("is_paused_before", [True, False])
async def test_a_drained_worker_does_not_come_back(case: Case, is_paused_before: bool) -> None:
    """Also if it ends while the webhooks are read."""
    may_drain = trio.Event()

    async def drain(service: WebhookService) -> None:
        if may_drain.is_set() and service._working:
            await case.operator.ask("drain_worker", worker="mill")
            await wait_until(lambda: not service._working)

    await case.add()
    async with serving(case.asked(name="mill"), change=lambda service: Between(service, drain)) as run:
        await wait_until(lambda: case.is_worked)
        if is_paused_before:
            await case.pause(True)
            await case.pause(False)
        may_drain.set()
        await run.ended.wait()


async def test_a_stop_ends_the_workers_of_all_queues_at_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_S", 3600.0)
    may_answer = trio.Event()

    async def answer(_: Request) -> Reply:
        await may_answer.wait()
        return reply()

    case.receiver.answer = answer
    for queue in ("a", "b", "none"):
        await case.ada.enqueue(queue, ["1", "2", "3"])
    for queue in ("a", "b"):
        await case.add(queue)
    async with serving(case.asked("a", "b", "none")) as run:
        await wait_until(lambda: len(case.receiver.requests) == 4)  # two of each queue
        assert run.service.running == 4
        run.service.stop()
        may_answer.set()
        await run.ended.wait()
    assert len(case.receiver.requests) == 4


async def test_a_stop_while_the_webhooks_are_read_begins_nothing(case: Case) -> None:
    async def stop(service: WebhookService) -> None:
        service.stop()

    await case.add()
    await case.ada.enqueue("q", ["a"])
    async with serving(case.asked(), change=lambda service: Between(service, stop)) as run:
        await run.ended.wait()
    assert case.receiver.requests == []


async def test_a_burst_waits_for_webhooks_that_could_not_be_read_and_ends(case: Case) -> None:
    failures = [Unavailable("no connection to the store")] * 2

    async def fail(_: WebhookService) -> None:
        if failures:
            raise failures.pop()

    await case.add("b")
    await case.ada.enqueue("b", ["1"])
    async with serving(case.asked("a", "b"), burst=True, change=lambda service: Between(service, fail)) as run:
        await run.ended.wait()
    await case.posted(b'"1"')


async def test_a_burst_without_a_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"ASK_S": 0.05, "ANSWER_S": 0.05, "READ_S": 0.01}.items():
        monkeypatch.setattr(module, name, seconds)
    asked = Asked(["a", "b"], POLICY, DELIVERY, f"ws://127.0.0.1:{stores.free_port()}", WORKER, 2, None)
    with trio.fail_after(DEADLINE_S), pytest.raises(Unavailable, match="no connection to the server"):
        async with open_service(asked) as service:
            await service.run(burst=True)


async def test_a_token_that_may_not_work_ends_the_service(case: Case) -> None:
    with pytest.raises(Unauthorized):
        async with open_service(case.asked("a", "b", token="wrong")) as service:
            await service.run()


async def test_each_webhook_with_fan_out_gets_a_task(case: Case) -> None:
    for path in ("one", "two"):
        await case.add(path=path, has_fan_out=True)
    async with serving(case.asked()):
        await case.ada.enqueue("q", ["a"])
        await case.posted(b'"a"', b'"a"')
    assert {request.target for request in case.receiver.requests} == {"/one", "/two"}


async def test_one_url_gets_the_tasks_of_all_queues(case: Case) -> None:
    for queue in ("a", "b"):
        await case.ada.enqueue(queue, [queue])
    async with open_worker(case.asked("a", "b"), case.url()) as worker:
        await worker.run(burst=True)
    await case.posted(b'"a"', b'"b"')


@pytest.mark.parametrize("is_registered", [True, False])
async def test_a_name_that_leads_to_this_machine_is_refused(case: Case, is_registered: bool) -> None:
    url = case.url(host="localhost")
    asked = case.asked(policy=Policy(AddressRules(), unsigned=True))
    await case.ada.enqueue("q", ["a"], retry_base_ms=YEAR_MS, retry_cap_ms=YEAR_MS)  # a backoff of up to a year
    if is_registered:
        await case.operator.ask("add_webhook", queue="q", url=url)
        async with serving(asked, burst=True) as run:
            await run.ended.wait()
    else:
        async with open_worker(asked, url) as worker:
            await worker.run(burst=True)
    (state,) = await case.served.app.store.tasks("q", ["ada/a"])
    assert (state.state, "is loopback" in state.error) == ("delayed", True)
    assert case.receiver.connections == 0


async def test_a_receiver_that_is_slow_holds_up_no_other_queue(case: Case) -> None:
    async def answer(request: Request) -> Reply:
        if request.target == "/slow":
            await trio.sleep_forever()
        return reply()

    case.receiver.answer = answer
    await case.add("a", "slow")
    await case.add("b", "quick")
    await case.ada.enqueue("a", ["1", "2", "3"])
    async with serving(case.asked("a", "b")) as run:
        await wait_until(lambda: run.service.running == 2)
        await case.ada.enqueue("b", ["4"])
        await wait_until(lambda: any(request.target == "/quick" for request in case.receiver.requests))


def test_workers_are_named_by_their_queues() -> None:
    asked = partial(Asked, policy=POLICY, delivery=DELIVERY, servers="ws://h", token=WORKER, concurrency=1)
    assert asked(["a"], name="mill").name_in("a") == "mill"
    assert asked(["a", "b"], name="mill").name_in("b") == "mill.b"
    with pytest.raises(SettingsError, match=r"mill\.b+, have over"):
        asked(["a", "b" * 60], name="mill").name_in("b" * 60)
    for queue in ("b", "b" * 64):
        name = asked(["a", queue], name=None).name_in(queue)
        assert name.startswith(f"{queue[:20]}.")
        assert len(name) <= MAX_WORKER_CHARS
