"""A server is killed or stopped, with its workers: they are soon off the list, and unknown is never told as nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
import trio

import fairq
from tests import stores
from tests.server.harness import OPERATOR
from tests.store.waiting import wait_until

from .harness import World, producing

pytestmark = pytest.mark.deep("kills")


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_killed_or_stopped_servers_workers_are_forgotten(
    world: World, durable_store: Callable[[], stores.LocalServer], end: signal.Signals
) -> None:
    """Another server tells the worker of a task until then; a server that wakes up is listed again."""
    store = durable_store()
    with trio.fail_after(180):
        doomed, other = world.serve("--store", store.url), world.serve("--store", store.url)
        doomed_url, other_url = await doomed.wait_url(), await other.wait_url()
        async with producing(other_url) as producer, fairq.open_operator(other_url, token=OPERATOR) as operator:
            await operator.configure("q", lease_ms=3_600_000)
            await producer.enqueue("a", first="never")
            await producer.client.enqueue("q", {}, id="later", delay=3_600)
            world.work(doomed_url, name="mill")
            await world.wait_journal(lambda ran: len(ran) == 1)

            async def are_listed(count: int) -> bool:
                return len(await operator.workers()) == count

            async def is_told(takers: str) -> bool:
                return (await operator.queues())[0].takers == takers

            await wait_until(lambda: are_listed(1))
            assert (await operator.tasks("q", ["ada/a"]))[0].worker == "mill"
            assert [task.id for task in (await operator.worker_tasks("mill")).tasks] == ["ada/a"]
            assert await is_told("some")
            doomed.send(end)
            assert (await operator.tasks("q", ["ada/a"]))[0].worker == ""
            found = await operator.worker_tasks("mill")
            assert (len(found.workers), found.tasks, len(found.unanswered)) == (1, [], 1)
            assert await is_told("unknown")
            await wait_until(lambda: are_listed(0), 15)
            with pytest.raises(fairq.NotFound):
                await operator.worker_tasks("mill")
            if end == signal.SIGSTOP:
                doomed.send(signal.SIGCONT)
                await wait_until(lambda: are_listed(1), 15)
                assert await is_told("some")
            else:
                await wait_until(lambda: is_told("none"), 75)  # its slots are remembered for a minute
