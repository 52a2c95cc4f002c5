"""The client under asyncio and trio: one source, the same answers on good days and on bad ones."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio

import fairq
import fairq.sync
from fairq.errors import Closed, SettingsError
from tests import stores
from tests.cli.harness import environment
from tests.server.harness import OPERATOR, tenant

from .runtimes import RUNTIMES, Service, on_both, wait_until

_PING = 0x89  # the first byte of a websocket's


class CountedSocket:
    """A socket that counts how often something is sent, but for pings: they ask a server that answers late."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner, self.sends = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def send(self, data: bytes) -> int:
        self.sends += data[0] != _PING
        return self._inner.send(data)


@on_both
async def test_different_calls_of_one_turn_leave_in_one_send(service: Service, frames: list[str]) -> None:
    async with service.client() as client:
        task = await client.enqueue("emails", 1)
        frames.clear()
        transport: Any = client._caller._transport  # type: ignore[attr-defined]
        counted = CountedSocket(transport.socket)
        transport.socket, transport._write = counted, counted.send
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(client.enqueue, "emails", number)
                group.start_soon(client.enqueue, "images", number)
                group.start_soon(task.state)
                group.start_soon(client.peek, "emails")
        assert sorted(frames) == ["enqueue"] * 2 + ["peek"] * 50 + ["tasks"] * 50
        assert counted.sends == 1


@on_both
async def test_a_call_that_fails_as_it_is_sent_ends_at_once(service: Service) -> None:
    """And not when the scheduler wakes the next time, for a heartbeat."""
    async with fairq.open_operator(service.url, token=OPERATOR) as operator:
        await operator.queues()
        with anyio.move_on_after(5) as waiting, pytest.raises(fairq.BadRequest, match="not JSON"):
            await operator.request("configure", {"queue": "emails", "settings": object()})
        assert not waiting.cancel_called


async def nothing(task: fairq.Task) -> None:
    """Do a task that has nothing to be done."""


@on_both
async def test_a_cancelled_call_is_left_and_the_client_goes_on(service: Service) -> None:
    async with fairq.open_client(service.proxied, token=tenant("ada")) as client:
        await client.enqueue("emails", 0)
        service.hold()
        asked = service.proxy.requests
        ended: list[str] = []

        async def enqueue() -> None:
            await client.enqueue("emails", 1)
            ended.append("though it was cancelled")

        async with anyio.create_task_group() as group:
            group.start_soon(enqueue)
            await wait_until(lambda: service.proxy.requests > asked)
            group.cancel_scope.cancel()
        service.soon(service.proxy.release)
        await client.enqueue("emails", 2)
        assert [waiting.payload for waiting in await client.peek("emails")] == [0, 1, 2], "it was under way"
        assert not ended


def test_an_open_client_ends_with_its_cancelled_task(service: Service) -> None:
    opened: list[fairq.Client] = []

    async def enqueue() -> None:
        async with service.client() as client:
            await client.enqueue("emails", 1)
            opened.append(client)
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(enqueue())
        await wait_until(lambda: bool(opened))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(Closed):
            await opened[0].enqueue("emails", 2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_opens_a_client_leaves_nothing_running(service: Service) -> None:
    async def opening() -> None:
        async with service.client():
            raise AssertionError("it was not cancelled")

    async def main() -> None:
        task = asyncio.create_task(opening())
        await asyncio.sleep(0)  # it has begun
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


@on_both
async def test_a_client_that_was_closed_at_once_refuses_calls(service: Service) -> None:
    async with service.client() as client:
        pass
    with pytest.raises(Closed):
        await client.enqueue("emails", 1)


def test_a_client_may_be_closed_in_another_task_of_asyncio(service: Service) -> None:
    async def main() -> None:
        opened = service.client()
        client = await asyncio.create_task(finish_step(opened.__aenter__()))
        await client.enqueue("emails", 1)
        await asyncio.create_task(finish_step(opened.__aexit__(None, None, None)))
        with pytest.raises(Closed):
            await client.enqueue("emails", 2)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    async def finish_step(step: Awaitable[Any]) -> Any:
        return await step

    asyncio.run(main())


@pytest.mark.parametrize("run", [asyncio.run, trio.run], ids=["asyncio", "trio"])
def test_ctrl_c_closes_the_client(service: Service, run: Callable[[Any], None]) -> None:
    async def main(*_: Any) -> None:
        async with service.client() as client:
            await client.enqueue("emails", 1)
            signal.raise_signal(signal.SIGINT)
            await client.enqueue("emails", 2)
            await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        run(main() if run is asyncio.run else main)


@on_both
async def test_a_client_of_another_event_loop_says_so(service: Service) -> None:
    def elsewhere(call: Callable[[], Any]) -> list[str]:
        said = []
        for backend in RUNTIMES:
            with pytest.raises(RuntimeError) as caught:
                anyio.run(call, backend=backend)
            said.append(str(caught.value))
        return said

    async with service.client() as client:
        task = await client.enqueue("emails", 1, result_ttl=60)
        for call in (lambda: client.enqueue("emails", 1), task.result, task.state):
            said = await anyio.to_thread.run_sync(elsewhere, call)
            assert all("opened in another event loop" in each for each in said)
        assert len(await client.peek("emails")) == 1


def test_outside_an_event_loop_it_says_what_it_needs() -> None:
    for begin in (fairq.open_client(token="t").__aenter__, with_handler(fairq.Worker(token="t")).run):
        with pytest.raises(RuntimeError, match=r"asyncio\.run or trio\.run"):
            begin().send(None)


def with_handler(app: fairq.Worker) -> fairq.Worker:
    app.task("emails")(nothing)
    return app


@on_both
async def test_url_and_token_come_from_the_environment(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRQ_TOKEN", raising=False)
    with pytest.raises(SettingsError, match="FAIRQ_TOKEN"):
        async with fairq.open_client():
            pass
    monkeypatch.setenv("FAIRQ_URL", f"{service.url}, {service.url}")
    monkeypatch.setenv("FAIRQ_TOKEN", tenant("bob"))
    async with fairq.open_client() as client:
        assert (await (await client.enqueue("emails", 1)).state()).tenant == "bob"
    async with fairq.open_client(f"ws://127.0.0.1:{stores.free_port()}, {service.url}", token=tenant("ada")) as client:
        assert (await (await client.enqueue("emails", 1)).state()).tenant == "ada"
    monkeypatch.setenv("FAIRQ_TOKEN", OPERATOR)
    async with fairq.open_operator() as operator:
        assert len(await operator.tenants("emails")) == 2
    monkeypatch.setenv("FAIRQ_TOKEN", "dev-worker")
    app = with_handler(fairq.Worker())
    await app.run(burst=True)
    assert app.counts["done"] == 2


def test_a_program_on_asyncio_imports_no_trio(service: Service) -> None:
    program = (
        "import asyncio, sys, fairq\n"
        "async def main():\n"
        "    async with fairq.open_client() as client:\n"
        "        await client.enqueue('emails', 1)\n"
        "    app = fairq.Worker(token='dev-worker')\n"
        "    app.task('emails')(print)\n"
        "    await app.run(burst=True)\n"
        "    print(app.counts['done'], 'trio' in sys.modules)\n"
        "asyncio.run(main())\n"
    )
    env = environment({"FAIRQ_URL": service.url, "FAIRQ_TOKEN": tenant("ada")})
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[-1] == "1 False"
