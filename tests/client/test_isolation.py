"""A handler leaves nothing that the next one sees or meets: in its context, or in the scheduler task."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import gc
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from inspect import Parameter, signature
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import structlog.contextvars
import trio

import fairq
import fairq.testing
from fairq.client import isolation, runners
from tests.logs import captured_logs

from .runtimes import LIMIT_S, Service, on_both, wait_state, working

LOOPS = ("asyncio", "uvloop", "trio")
NEW = 28  # digits of a new decimal context

tenant_var = contextvars.ContextVar[str]("tenant_var", default="nobody")
base_var = contextvars.ContextVar[str]("base_var", default="not started")


def on_loops(*loops: str) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test under each of these loops, for at most LIMIT_S, with the argument `loop`.

    In a context without decimal's, which pytest has.
    """

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        async def limited(**fixtures: Any) -> None:
            with anyio.fail_after(LIMIT_S):
                await test(**fixtures)

        @wraps(test)
        def run(loop: str, **fixtures: Any) -> None:
            if loop == "uvloop":
                pytest.importorskip("uvloop")
            options = {"use_uvloop": loop == "uvloop"} if loop != "trio" else {}
            backend = "trio" if loop == "trio" else "asyncio"
            test_in_loop = partial(limited, loop=loop, **fixtures)
            contextvars.Context().run(anyio.run, test_in_loop, backend=backend, backend_options=options)

        others = [each for name, each in signature(test).parameters.items() if name != "loop"]
        own = Parameter("loop", Parameter.KEYWORD_ONLY)
        run.__signature__ = signature(test).replace(parameters=[*others, own])  # type: ignore[attr-defined]
        each_loop: Callable[..., None] = pytest.mark.parametrize("loop", loops)(run)
        return each_loop

    return decorate


def name_here() -> str:
    """The name of the running scheduler task, or of the thread beside."""
    try:
        task: Any = asyncio.current_task()
        return str(task.get_name())
    except RuntimeError:
        return trio.lowlevel.current_task().name if trio.lowlevel.in_trio_task() else threading.current_thread().name


def rename_here(name: str) -> None:
    try:
        task: Any = asyncio.current_task()
        task.set_name(name)
    except RuntimeError:
        if trio.lowlevel.in_trio_task():
            trio.lowlevel.current_task().name = name
        else:
            threading.current_thread().name = name


def look_and_leave(task: fairq.Task) -> dict[str, Any]:
    """Tell what a handler sees before it leaves all it can."""
    seen = {
        "tenant": tenant_var.get(), "base": base_var.get(), "bound": structlog.contextvars.get_contextvars(),
        "digits": decimal.getcontext().prec, "name": "another's" if name_here() == "another's" else "its own",
    }  # fmt: skip
    tenant_var.set(task.tenant)
    base_var.set(task.tenant)
    structlog.contextvars.bind_contextvars(customer=task.tenant)
    decimal.getcontext().prec = 3
    rename_here("another's")
    return seen


async def around(task: fairq.Task) -> AsyncIterator[None]:
    assert tenant_var.get() == "nobody"
    tenant_var.set(f"around {task.tenant}")
    yield


def inside(task: fairq.Task) -> Iterator[None]:
    structlog.contextvars.bind_contextvars(inside=task.tenant)
    yield


def set_up(app: fairq.Worker, startup: str, digits: int = 50) -> None:
    """Have on_startup leave a context: from the loop, or from a thread; decimal's too, unless it is as any new one."""

    def prepare() -> None:
        base_var.set("started")
        if digits != NEW:
            decimal.getcontext().prec = digits

    async def prepare_async() -> None:
        await anyio.lowlevel.checkpoint()
        prepare()

    app.on_startup(prepare_async if startup == "async" else prepare)


@pytest.mark.parametrize(("kind", "startup"), [("async", "async"), ("waits", "plain"), ("plain", "plain")])
@pytest.mark.parametrize(("has_middleware", "digits"), [(False, NEW), (False, 50), (True, 50)])
@on_loops(*LOOPS)
async def test_each_sees_what_startup_left(
    service: Service, loop: str, kind: str, startup: str, has_middleware: bool, digits: int
) -> None:
    app, seen = service.worker(1), list[tuple[str, dict[str, Any]]]()
    set_up(app, startup, digits)
    if has_middleware:
        app.middleware(around)
        app.middleware(inside)

    if kind == "plain":

        @app.task("q")
        def handle(task: fairq.Task) -> None:
            seen.append((task.tenant, look_and_leave(task)))
    else:

        @app.task("q")
        async def handle_async(task: fairq.Task) -> None:
            if kind == "waits":
                await anyio.sleep(0.001)
            seen.append((task.tenant, look_and_leave(task)))

    for tenant in ("acme", "globex", "acme"):
        async with service.client(tenant) as client:
            await client.enqueue("q", 1)
    await app.run(burst=True)
    async with service.client("initech") as client:
        await client.enqueue("q", 1)
    await app.run(burst=True)  # and another run begins afresh
    assert len(seen) == 4
    for tenant, each in seen:
        assert each == {
            "tenant": f"around {tenant}" if has_middleware else "nobody", "base": "started",
            "bound": {"inside": tenant} if has_middleware else {}, "digits": digits, "name": "its own",
        }  # fmt: skip
    assert (tenant_var.get(), base_var.get()) == ("nobody", "not started")


@on_both
async def test_shutdown_sees_what_startup_left(service: Service) -> None:
    app, seen = service.worker(1), list[str]()
    app.on_startup(lambda: base_var.set("started") and None)
    app.on_shutdown(lambda: seen.append(base_var.get()))

    @app.on_shutdown
    async def close() -> None:
        seen.append(base_var.get())

    app.task("q")(lambda task: base_var.set("left") and None)
    async with service.client() as client:
        await client.enqueue("q", 1)
        await app.run(burst=True)
    assert seen == ["started", "started"]


@on_both
async def test_in_memory_too(runtime: str) -> None:
    app, seen = fairq.Worker(concurrency=1), list[dict[str, Any]]()
    set_up(app, "plain")

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        seen.append(look_and_leave(task))

    async with fairq.testing.run(app) as service:
        tenant_var.set("test")
        await service.enqueue_many("q", [1, 2])
        await service.drain()
    assert [(each["tenant"], each["base"], each["digits"]) for each in seen] == [("nobody", "started", 50)] * 2


async def never(delay: float) -> AsyncIterator[None]:
    """A generator with a timeout, which nothing closes."""
    with anyio.move_on_after(delay):
        yield


kept: list[Any] = []  # what handlers leave behind: it would be closed, if nothing held it


def cancel_itself_later() -> None:
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().call_later(0.02, task.cancel)


async def leave_a_count() -> None:
    task: Any = asyncio.current_task()
    asyncio.get_running_loop().call_later(0.001, task.cancel)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(10)


async def leave_a_late_timer() -> None:
    cancel_itself_later()


async def leave_a_late_timer_after_a_wait() -> None:
    await asyncio.sleep(0.001)
    cancel_itself_later()
    await asyncio.sleep(0.001)


async def leave_a_timeout_open() -> None:
    kept.append(asyncio.timeout(0.02))
    await kept[-1].__aenter__()


async def leave_a_group_open() -> None:
    kept.append(asyncio.TaskGroup())
    await kept[-1].__aenter__()
    kept[-1].create_task(asyncio.wait_for(asyncio.Event().wait(), 0.02))  # its failure cancels the one who opened it


async def leave_a_scope_open() -> None:
    kept.append(anyio.move_on_after(0.02))
    kept[-1].__enter__()


async def leave_a_cancelled_scope_open() -> None:
    kept.append(anyio.CancelScope())
    kept[-1].__enter__()
    kept[-1].cancel()


async def leave_a_generator_open() -> None:
    kept.append(never(0.02))
    await anext(kept[-1])


async def leave_an_anyio_group_open() -> None:
    kept.append(anyio.create_task_group())
    await kept[-1].__aenter__()
    kept[-1].start_soon(anyio.sleep, 10)
    kept[-1].cancel_scope.deadline = anyio.current_time() + 0.02


async def leave_a_nursery_open() -> None:
    kept.append(trio.open_nursery())
    nursery = await kept[-1].__aenter__()
    nursery.start_soon(trio.sleep, 10)
    nursery.cancel_scope.deadline = trio.current_time() + 0.02


async def leave_an_attribute() -> None:
    task: Any = asyncio.current_task()
    task.customer = "acme"


ASYNCIO = [
    leave_a_count, leave_a_late_timer, leave_a_late_timer_after_a_wait, leave_a_timeout_open, leave_a_group_open,
    leave_a_scope_open, leave_a_cancelled_scope_open, leave_a_generator_open, leave_an_anyio_group_open,
    leave_an_attribute,
]  # fmt: skip
TRIO = [
    leave_a_scope_open, leave_a_cancelled_scope_open, leave_a_generator_open, leave_an_anyio_group_open,
    leave_a_nursery_open,
]  # fmt: skip


async def check_the_next(service: Service, leave: Callable[[], Awaitable[None]]) -> None:
    """Have one tenant's handler leave something; nothing of it must reach the other's, and the worker goes on."""
    app = service.worker(1)

    @app.task("leaves")
    async def leaves(task: fairq.Task) -> None:
        await leave()

    @app.task("next")
    async def comes_next(task: fairq.Task) -> str:
        if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
            current: Any = asyncio.current_task()
            assert (current.cancelling(), hasattr(current, "customer")) == (0, False)
            child = asyncio.create_task(asyncio.sleep(10))
            asyncio.get_running_loop().call_soon(child.cancel)
            if task.attempt == 1:
                await child  # a CancelledError that is no one's but the handler's
        await anyio.sleep(0.1)
        return "to its end"

    async with service.client("acme") as acme, service.client("globex") as globex, working(app):
        for _ in range(2):
            left = await acme.enqueue("leaves", 1, max_attempts=1)
            task = await globex.enqueue("next", 1, result_ttl=60, retry_base=0.01)
            assert await task.result() == "to its end"
            await wait_state(left, "done")


@pytest.mark.parametrize("leave", ASYNCIO)
@on_loops("asyncio", "uvloop")
async def test_what_acts_later_under_asyncio(service: Service, loop: str, leave: Callable[[], Awaitable[None]]) -> None:
    await check_the_next(service, leave)


@pytest.mark.parametrize("leave", TRIO)
@on_loops("trio")
async def test_what_acts_later_under_trio(service: Service, loop: str, leave: Callable[[], Awaitable[None]]) -> None:
    with captured_logs() as lines:
        await check_the_next(service, leave)
    assert any("left a cancel scope or a nursery open" in line["event"] for line in lines)


async def use_scopes(loop: str) -> None:
    """Wait in all ways that keep the scheduler task for a while."""
    await anyio.sleep(0.001)
    with anyio.move_on_after(0.001):
        await anyio.sleep(10)
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0.001)
    await anyio.to_thread.run_sync(threading.get_ident)
    if loop != "trio":
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(0.001))
        await asyncio.wait_for(asyncio.sleep(0.001), 10)
        await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(threading.get_ident))


def call_here_later(loop: str, call: Callable[[], None]) -> None:
    """Have a function called later, in the very context that runs, not in a copy."""
    if loop == "trio":
        context = trio.lowlevel.current_task().context
        trio.lowlevel.current_trio_token().run_sync_soon(context.run, call)
    else:
        referents = gc.get_referents(asyncio.current_task())  # from Python 3.12 on there is get_context()
        context = next(each for each in referents if isinstance(each, contextvars.Context))
        asyncio.get_running_loop().call_soon(call, context=context)


@on_loops(*LOOPS)
async def test_what_runs_later_in_the_context_of_a_handler_does_not_reach_the_next(service: Service, loop: str) -> None:
    app, seen, is_set = service.worker(1), list[str](), anyio.Event()

    def call() -> None:
        tenant_var.set("acme")
        is_set.set()

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        if task.payload == "leaves":
            call_here_later(loop, call)
            return
        seen.append(tenant_var.get())
        await is_set.wait()
        seen.append(tenant_var.get())

    async with service.client() as client:
        await client.enqueue_many("q", ["leaves", "looks"])
        await app.run(burst=True)
    assert seen == ["nobody", "nobody"]


@on_loops(*LOOPS)
async def test_handlers_that_leave_nothing_share_a_scheduler_task_and_a_context(
    service: Service, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, begun = service.worker(1), list[object]()
    own_task = isolation.OwnTask

    def begin(*own: Any) -> isolation.OwnTask:
        begun.append(1)
        return own_task(*own)

    monkeypatch.setattr(isolation, "OwnTask", begin)
    monkeypatch.setattr(runners, "in_context", None)  # and its context

    @app.task("q")
    async def handle(task: fairq.Task) -> None:
        await use_scopes(loop)
        if task.payload == "raises":
            raise ValueError("broken")

    app.task("plain")(lambda task: rename_here("another's"))
    async with service.client() as client:
        await client.enqueue_many("q", [1, "raises", 2], max_attempts=1)
        await client.enqueue_many("plain", [1, 2])
        await app.run(burst=True)
    assert app.counts == {"done": 4, "dead": 1}
    assert len(begun) == 1
