"""Several kinds of task in one queue: the task's name chooses its handler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from types import MethodType
from typing import Any
from unittest.mock import AsyncMock

import pytest

import fairq
from fairq.client.kinds import Handler, check_function
from fairq.errors import BadRequest
from fairq.log import name_of
from tests.store.cases import case

from .runtimes import Service, on_both, wait_state, working

YEAR = timedelta(days=365)


@on_both
async def test_the_name_of_a_task_chooses_its_handler(service: Service) -> None:
    app = service.worker()

    @app.task("emails", name="welcome")
    async def welcome(task: fairq.Task) -> str:
        return f"welcome {task.name}"

    @app.task("emails", name="bye")
    def bye(task: fairq.Task) -> str:
        return f"bye {task.name}"

    @app.task("emails")
    async def other(task: fairq.Task) -> str:
        return f"other {task.name}"

    async with service.client() as client, working(app):
        for name in ("welcome", "bye", "", "unknown"):
            task = await client.enqueue("emails", 1, name=name, result_ttl=60)
            expected = f"{name if name in ('welcome', 'bye') else 'other'} {name}"
            assert await task.result() == expected


@on_both
async def test_a_name_without_a_handler_is_a_failed_attempt_that_another_worker_may_make_good(service: Service) -> None:
    old, new = service.worker(), fairq.Worker(service.url, "dev-worker", name="worker-2")
    for app in (old, new):
        app.task("emails", name="bye")(print)

    @new.task("emails", name="welcome")
    async def welcome(task: fairq.Task) -> int:
        return task.attempt

    async with service.client() as client:
        async with working(old):
            # A backoff of up to a year: the old worker has no second attempt.
            task = await client.enqueue("emails", 1, name="welcome", result_ttl=60, retry_base=YEAR, retry_cap=YEAR)
            nameless = await client.enqueue("emails", 1, max_attempts=1)
            state = await wait_state(task, "delayed")
            assert state.error == (
                "NoHandler: queue emails has no handler for tasks named 'welcome' in this worker;"
                " it has handlers for 'bye'"
            )
            state = await wait_state(nameless, "dead")
            assert (state.reason, "tasks without a name" in state.error) == ("exhausted", True)
        assert await task.reschedule() == "ok"
        async with working(new):
            assert await task.result() == 2


def test_two_handlers_of_one_name_are_refused() -> None:
    app = fairq.Worker(token="x")
    app.task("emails", name="welcome")(print)
    with pytest.raises(BadRequest, match="queue emails already has a handler for tasks named 'welcome'"):
        app.task("emails", name="welcome")(print)
    with pytest.raises(BadRequest, match="name"):
        app.task("emails", name="n" * 129)
    assert list(app.handlers) == ["emails"]
    assert list(app.handlers["emails"].by_name) == ["welcome"]


def test_an_error_tells_a_few_of_many_names() -> None:
    app = fairq.Worker(token="x")
    for number in range(500):
        app.task("emails", name=f"{number:03}")(print)
    with pytest.raises(Exception, match=r"'019' and 480 more"):
        app.handlers["emails"].find("x").function(_Named()).send(None)


class _Named:
    name = "x"


class Sender:
    """An object that is called, and has methods; nobody can print it."""

    async def __call__(self, word: str, task: fairq.Task) -> str:
        return f"{word} {task.payload}"

    async def method(self, task: fairq.Task) -> str:
        return await self("method", task)

    preset = functools.partialmethod(__call__, "preset")

    @classmethod
    async def of_class(cls, task: fairq.Task) -> str:
        return await cls()("class", task)

    @staticmethod
    async def static(task: fairq.Task) -> str:
        return await Sender()("static", task)

    def __repr__(self) -> str:
        raise RuntimeError("not this")


class Preset(Sender):
    """An object whose call is preset."""

    __call__ = functools.partialmethod(Sender.__call__, "preset")


class Plain(Sender):
    """An object that is called in a thread."""

    def __call__(self, task: fairq.Task) -> str:  # type: ignore[override]
        return f"plain {task.payload}"


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(task: fairq.Task) -> Any:
        return await function(task)

    return call


CALLABLES: dict[str, Any] = {
    "partial": functools.partial(Sender(), "partial"),
    "twice": functools.partial(functools.partial(Sender()), "twice"),
    "method": functools.partial(Sender().method),
    "preset": functools.partial(Sender().preset),
    "object": functools.partial(Preset()),
    "bound": MethodType(Sender(), "bound"),
    "class": functools.partial(Sender.of_class),
    "static": Sender.__dict__["static"],
    "wrapped": decorated(functools.partial(Sender(), "wrapped")),
    "mock": AsyncMock(return_value="mock 7"),
    "plain": functools.partial(Plain()),
}


@on_both
async def test_what_runs_in_the_loop_is_found_in_what_holds_it(service: Service) -> None:
    app = service.worker()
    for name, function in CALLABLES.items():
        app.task("emails", name=name)(function)
    async with service.client() as client, working(app):
        for name in CALLABLES:
            with case(name):
                task = await client.enqueue("emails", 7, name=name, result_ttl=60, max_attempts=1)
                assert await task.result() in (f"{name} 7", "preset 7")
    for name in CALLABLES:
        assert Handler(CALLABLES[name], "emails").is_async == (name != "plain")
    assert not Handler(functools.partial(Sender), "emails").is_async, "its objects are called, not it"


def test_a_callable_goes_by_the_name_of_what_it_holds() -> None:
    assert name_of(functools.partial(functools.partial(Sender()), "twice")) == "Sender"
    assert name_of(Handler(Plain(), "emails")._in_thread) == "Plain"
    assert name_of(functools.partial(Sender().method)) == "Sender.method"


def test_a_generator_is_found_in_what_holds_it() -> None:
    class Steps:
        def __call__(self, task: fairq.Task) -> Any:
            yield 1

    with pytest.raises(BadRequest, match="without `yield`"):
        check_function(functools.partial(Steps()))
