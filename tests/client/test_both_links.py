"""What handlers enqueue, under asyncio and trio: at once, or with their acknowledgement."""

from __future__ import annotations

from typing import Any

import anyio.from_thread
import pytest

import fairq

from .runtimes import Service, on_both, wait_until, working


@on_both
async def test_a_chain_of_three_queues_runs_to_its_end(service: Service) -> None:
    app, seen = service.worker(3), list[tuple[str, str, int]]()

    @app.task("first")
    async def first(task: fairq.Task) -> None:
        seen.append(("first", task.tenant, task.payload))
        task.then("first" if task.payload < 2 else "second", task.payload + 1)

    @app.task("second")
    def second(task: fairq.Task) -> None:
        seen.append(("second", task.tenant, task.payload))
        task.then("third", task.payload + 1, delay=0.05)

    @app.task("third")
    async def third(task: fairq.Task) -> None:
        seen.append(("third", task.tenant, task.payload))

    async with service.client() as ada, service.client("bob") as bob, working(app):
        await ada.enqueue("first", 0)
        await bob.enqueue("first", 1)
        await wait_until(lambda: len(seen) == 9)
        for name in ("ada", "bob"):
            mine = [(queue, count) for queue, tenant, count in seen if tenant == name]
            first_of = ["first"] * (3 if name == "ada" else 2)
            assert mine == list(zip([*first_of, "second", "third"], range(0 if name == "ada" else 1, 5), strict=True))


@on_both
async def test_what_a_handler_enqueues_is_one_task_for_equal_payloads_if_it_says_so(service: Service) -> None:
    app = service.worker()

    @app.task("work")
    async def work(task: fairq.Task) -> list[str]:
        payloads = {"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}
        return [await task.enqueue("next", each, dedupe_payload=True) for each in payloads]

    async with service.client() as client, working(app):
        one, same, other = await (await client.enqueue("work", None, result_ttl=60)).result(timeout=10)
        assert one == same != other


@on_both
async def test_a_plain_handler_that_forgets_the_event_loop_is_reported(service: Service) -> None:
    app, seen = service.worker(), list[RuntimeError]()

    @app.task("work")
    def work(task: fairq.Task) -> None:
        calls: Any = ((task.enqueue, ("next", 1)), (task.progress, (0.5,)))
        for call, args in calls:
            with pytest.raises(RuntimeError, match=r"anyio\.from_thread\.run") as caught:
                call(*args)
            seen.append(caught.value)
            anyio.from_thread.run(call, *args)

    async with service.client() as client, working(app):
        task = await client.enqueue("work", {}, result_ttl=60, max_attempts=1)
        await task.result(timeout=10)
        assert len(seen) == 2
