"""No task begins late: neither one that has expired, nor one whose lease was lost, whatever stood still before."""

from __future__ import annotations

import anyio
import pytest

import fairq
from tests.server.harness import OPERATOR, WORKER
from tests.store.waiting import wait_for

from .runtimes import Service, SyncApi, on_both, wait_state, wait_until, working

Begun = tuple[str, int]  # a task's payload, and its attempt

COUNT = 3  # of tasks that expire soon, and of others


def begun_by(app: fairq.Worker, kind: str = "async") -> list[Begun]:
    """Give a worker a handler; returns the tasks that it has begun, with their attempts."""
    begun = list[Begun]()

    async def note(task: fairq.Task) -> None:
        begun.append((task.payload, task.attempt))

    def note_in_thread(task: fairq.Task) -> None:
        begun.append((task.payload, task.attempt))

    app.task("emails")(note_in_thread if kind == "plain" else note)
    return begun


async def set_leases(service: Service, lease_ms: int) -> None:
    async with fairq.open_operator(service.url, token=OPERATOR) as operator:
        await operator.configure("emails", lease_ms=lease_ms)


async def offer_none(app: fairq.Worker, service: Service) -> None:
    """Have a worker offer no slots, and wait until its server knows it."""
    app._run.driver.session.credit = 0
    app._run.driver.wake_writer()
    async with fairq.open_operator(service.url, token=OPERATOR) as operator:

        async def is_known() -> bool:
            return 0 in [row.credit for row in await operator.workers() if row.worker == app.name]

        await wait_until(is_known)


async def enqueue(client: fairq.Client) -> list[fairq.EnqueuedTask]:
    """Enqueue tasks that expire soon, which are returned, and others."""
    await client.enqueue_many("emails", [f"other-{n}" for n in range(COUNT)])
    return [await client.enqueue("emails", f"brief-{n}", expires_in=0.7) for n in range(COUNT)]


async def check(
    client: fairq.Client, begun: list[Begun], of_heir: list[Begun], brief: list[fairq.EnqueuedTask]
) -> None:
    """Check that a worker has begun none of its first attempts, once it works again."""
    await wait_state(await client.enqueue("emails", "last"), "done")
    for n in range(COUNT):
        await wait_until(lambda n=n: f"other-{n}" in dict(begun + of_heir))  # type: ignore[misc]
    assert [each for each in begun if each[1] == 1 and each[0] != "last"] == []
    assert [each for each in of_heir if each[1] == 1 and each[0] != "last"] == []
    assert not set(begun) & set(of_heir)
    assert not [payload for payload, _ in begun if payload.startswith("brief")]
    assert [(await wait_state(task, "dead")).reason for task in brief] == ["expired"] * COUNT


@pytest.mark.parametrize("kind", ["async", "plain"])
@on_both
async def test_what_is_held_while_a_handler_blocks_the_loop_does_not_begin_late(service: Service, kind: str) -> None:
    await set_leases(service, 1000)
    app = fairq.Worker(service.url, WORKER, 1, name="blocked", prefetch=2 * COUNT)
    heir = fairq.Worker(service.url, WORKER, 1, name="heir")
    begun, of_heir = begun_by(app, kind), begun_by(heir)
    goes_on = anyio.Event()

    @app.task("emails", name="block")
    async def block(task: fairq.Task) -> None:
        if task.attempt == 1:
            async with SyncApi().working(heir):  # in a thread; nothing here lets the loop go on
                wait_for(lambda: heir.counts["done"] > 0)
        goes_on.set()

    async with service.client() as client:
        await client.enqueue("emails", None, name="block", max_attempts=1)
        brief = await enqueue(client)
        async with working(app):
            await goes_on.wait()
            await check(client, begun, of_heir, brief)


@pytest.mark.parametrize("kind", ["async", "plain"])
@on_both
async def test_what_comes_through_a_network_that_stood_still_does_not_begin_late(service: Service, kind: str) -> None:
    await set_leases(service, 1000)
    app = fairq.Worker(service.proxied, WORKER, 2 * COUNT, name="frozen")
    heir = fairq.Worker(service.url, WORKER, 1, name="heir")
    begun, of_heir = begun_by(app, kind), begun_by(heir)
    async with service.client() as client, working(app):
        await wait_until(lambda: app._run.driver.session.is_attached)
        service.soon(service.proxy.hold)
        brief = await enqueue(client)

        async def is_taken() -> bool:
            return (await brief[-1].state()).state != "ready"  # on a slow machine it has expired by now

        await wait_until(is_taken)
        await offer_none(app, service)  # else it gets them again
        for task in brief:  # on a slow machine they come long after the others
            await wait_state(task, "dead")
        await set_leases(service, 60_000)
        async with working(heir):
            await wait_until(lambda: heir.counts["done"] > 0)
        app._run.driver.session.credit = 2 * COUNT  # it says so when the answer has come to what it said before
        service.soon(service.proxy.release)
        await check(client, begun, of_heir, brief)
