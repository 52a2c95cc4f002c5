"""What is bound of each runtime: the end of a turn, a line of waiting tasks, and its own event loop."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import anyio

from fairq.io.event_loop import current_runtime
from tests.client.runtimes import on_both, wait_until


@on_both
async def test_a_line_is_woken_in_order_and_forgets_those_that_left() -> None:
    lot, woken, scopes = current_runtime().make_lot(), list[int](), [anyio.CancelScope() for _ in range(4)]

    async def park(number: int) -> None:
        with scopes[number]:
            await lot.park()
            woken.append(number)

    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(park, number)
            await anyio.wait_all_tasks_blocked()
        scopes[1].cancel()
        await anyio.wait_all_tasks_blocked()
        for _ in range(4):  # once more than there are
            lot.unpark()
            await anyio.wait_all_tasks_blocked()  # trio runs those that are ready together in any order
    assert woken == [0, 2, 3]


def test_one_that_is_woken_and_cancelled_at_once_wakes_the_next() -> None:
    woken: list[str] = []

    async def main() -> None:
        lot = current_runtime().make_lot()

        async def park(name: str) -> None:
            await lot.park()
            woken.append(name)

        tasks = [asyncio.create_task(park(name)) for name in ("first", "second")]
        await anyio.wait_all_tasks_blocked()
        lot.unpark()
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert woken == ["second"]


def test_a_task_that_waits_next_sends_at_once_unless_others_are_ready() -> None:
    sent: list[str] = []

    async def main() -> None:
        runtime = current_runtime()
        runtime.before_waiting(lambda: sent.append("alone"))
        assert sent == ["alone"]
        other = asyncio.create_task(asyncio.sleep(0))
        send = partial(sent.append, "with the other")
        runtime.before_waiting(send)
        runtime.before_waiting(send)
        assert sent == ["alone"]
        await other

    asyncio.run(main())
    assert sent == ["alone", "with the other"]


def test_an_error_at_the_end_of_a_turn_is_reported_and_the_others_send() -> None:
    seen: list[dict[str, Any]] = []
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
        runtime = current_runtime()
        runtime.before_waiting(fail)
        runtime.at_end_of_turn(fail)
        runtime.at_end_of_turn(lambda: done.append("sent"))
        await wait_until(lambda: bool(done))

    asyncio.run(main())
    assert (str(seen[0]["exception"]), done) == ("broken", ["sent"])
