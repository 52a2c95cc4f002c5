"""What handlers enqueue, under asyncio and trio: at once, or with their acknowledgement."""

from __future__ import annotations

import pytest

import fairq
from fairq.errors import BadRequest, TooLarge

from .runtimes import Service, on_both, wait_state, wait_until, working


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
async def test_nothing_leaves_with_an_attempt_that_fails(service: Service) -> None:
    app, seen = service.worker(3), list[int]()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        task.then("next", task.attempt)
        task.then("work-2", task.attempt)
        if task.attempt == 1:
            raise fairq.Retry("not yet", delay=0)
        if task.attempt == 2:
            raise fairq.Postpone("not yet", delay=0)

    @app.task("next")
    async def follow(task: fairq.Task) -> None:
        seen.append(task.payload)

    @app.task("work-2")
    async def follow_too(task: fairq.Task) -> None:
        seen.append(task.payload)

    async with service.client() as client, working(app):
        await client.enqueue("work", {})
        await wait_until(lambda: len(seen) == 2)
        assert seen == [3, 3]


@on_both
async def test_a_later_attempt_enqueues_nothing_twice(service: Service) -> None:
    app, seen, ids = service.worker(3), list[object](), list[str]()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        ids.append(await task.enqueue("next", [1]))
        ids.append(await task.enqueue("next", [2]))
        ids.append(await task.enqueue("next", [3], id="mine"))
        if task.attempt < 3:
            raise fairq.Retry("again", delay=0)
        await task.enqueue("next", "end")

    @app.task("next")
    async def follow(task: fairq.Task) -> None:
        seen.append(task.payload)

    async with service.client() as client, working(app):
        await client.enqueue("work", {}, id="w")
        await wait_until(lambda: "end" in seen)
        assert sorted(seen[:-1], key=str) == [[1], [2], [3]]
        assert ids[:3] == ids[3:6] == ids[6:9]
        assert len(set(ids)) == 3
        assert ids[2] == "mine"


@on_both
async def test_what_no_acknowledgement_can_have_is_refused_in_the_handler(service: Service) -> None:
    app, errors = service.worker(3), list[fairq.FairqError]()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        for queue, payload, options in (
            ("Not A Queue", 1, {}),
            ("next", object(), {}),
            ("next", 1, {"batch": "b"}),
            ("next", 1, {"id": "a/b"}),
            ("next", "x" * (1 << 20), {}),
            ("work", 1, {"id": task.id}),
        ):
            with pytest.raises((BadRequest, TooLarge)) as caught:
                task.then(queue, payload, **options)  # type: ignore[arg-type]
            errors.append(caught.value)
        task.then("next", 0, id=task.id)
        with pytest.raises(BadRequest) as repeated:
            task.then("next", 1, id=task.id)
        errors.append(repeated.value)
        task.then("work-2", 1, id=task.id)
        for n in range(14):
            task.then("next", n)
        with pytest.raises(TooLarge) as caught:
            task.then("next", 16)
        errors.append(caught.value)

    async with service.client() as client, working(app):
        task = await client.enqueue("work", {}, result_ttl=60)
        await task.result(timeout=10)
        assert [error.field for error in errors] == ["queue", "payload", "batch", "id", "payload", "id", "id", "links"]


@on_both
async def test_a_task_is_tried_again_until_there_is_room_for_what_follows_it(service: Service) -> None:
    app, seen, attempts = service.worker(3), list[int](), list[int]()

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        attempts.append(task.attempt)
        task.then("full-next", 2)

    async with fairq.open_operator(service.url, token="dev-operator") as operator, service.client() as client:
        await operator.set_limits("full-next", "ada", queued=1)
        await client.enqueue("full-next", 1)
        late = service.worker(3)
        late.name = "worker-2"

        @late.task("full-next")
        async def follow(task: fairq.Task) -> None:
            seen.append(task.payload)

        async with working(app):
            task = await client.enqueue("work", {})
            await wait_until(lambda: 2 in attempts)
            async with working(late):
                await wait_until(lambda: seen == [1, 2])
            await wait_state(task, "done")


@on_both
async def test_lost_answers_double_nothing(service: Service) -> None:
    app, seen = service.worker(1), list[object]()
    app.url = service.proxied

    @app.task("work")
    async def work(task: fairq.Task) -> None:
        service.soon(service.proxy.lose_next_reply)
        await wait_until(lambda: bool(service.proxy._losing))
        await task.enqueue("lost-next", "now")
        task.then("lost-next", "then")
        task.then("work-2", "then")
        service.soon(service.proxy.lose_next_reply)
        await wait_until(lambda: bool(service.proxy._losing))

    late = service.worker(1)
    late.name = "worker-2"
    for queue in ("lost-next", "work-2"):

        @late.task(queue)
        async def follow(task: fairq.Task) -> None:
            seen.append(task.payload)

    async with service.client() as client, working(app):
        task = await client.enqueue("work", {})
        await wait_state(task, "done")
        async with working(late):
            await wait_until(lambda: len(seen) == 3)
        assert sorted(map(str, seen)) == ["now", "then", "then"]
        assert service.proxy.lost == 2
