"""Several server processes behind one port: each serves, one that dies is replaced, and none outlives the first."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import trio
from attrs import evolve
from structlog.testing import capture_logs

from fairq.errors import SettingsError
from fairq.server.fleet import Fleet, environment_of, part_of, serve_fleet, shared_listeners
from fairq.server.settings import Settings, load_settings
from fairq.store.embedded import socket_path
from tests import stores
from tests.processes import commands, is_running
from tests.server.harness import WORKER, raw
from tests.server.web.admin.test_health import values
from tests.store.waiting import wait_until

from .harness import Process, World, operating, producing, wait_drained


def servers_of(pid: int) -> list[int]:
    """Find the server processes that a process has started."""
    return sorted(child for child, words in commands(pid) if "serve" in words)


async def test_processes_share_a_port_tell_their_own_metrics_and_drain_at_a_signal(world: World) -> None:
    with trio.fail_after(120):
        ports = ("--admin-port", "0", "--metrics-port", "0")
        server = world.serve("--data-dir", world.directory / "data", "--processes", "2", *ports)
        url = await server.wait_url()
        children = servers_of(server.pid)
        assert len(children) == 2
        found, admin = metrics_of(server), re.findall(r"admin=(http://[0-9.:]+)", server.printed)[0]
        async with httpx.AsyncClient(timeout=20) as client, AsyncExitStack() as stack:
            refused = await client.get(f"{admin}/metrics")
            assert (refused.status_code, "metrics_port" in refused.text) == (404, True)
            count, each = 0, [0.0, 0.0]
            while not all(each):  # the kernel says which of them has a connection
                count += 1
                await stack.enter_async_context(raw(url, WORKER))
                while sum(each := await connections(client, found)) < count:  # noqa: ASYNC110 - of other processes
                    await trio.sleep(0.1)
        server.send(signal.SIGTERM)
        assert await server.wait() == 0
        assert not any(map(is_running, children))


def metrics_of(server: Process) -> list[str]:
    """Read where each process of a fleet tells its metrics."""
    output = re.findall(r"http://[0-9.:]+", re.split("metrics=", server.printed)[1].splitlines()[0])
    assert len(set(output)) == 2
    return output


async def connections(client: httpx.AsyncClient, urls: list[str]) -> list[float]:
    """Read how many workers are connected to each process."""
    pages = [values((await client.get(f"{url}/metrics")).text) for url in urls]
    return [page.get(("fairq_connections", "worker"), 0.0) for page in pages]


@pytest.mark.deep("kills")
async def test_one_that_dies_is_replaced_with_its_port_and_all_tasks_are_done(world: World) -> None:
    with trio.fail_after(120):
        server = world.serve("--data-dir", world.directory / "data", "--processes", "2", "--metrics-port", "0")
        url = await server.wait_url()
        first = servers_of(server.pid)
        world.work(url)
        async with producing(url) as producer, operating(url) as operator, httpx.AsyncClient(timeout=20) as client:
            assert await producer.enqueue("before")
            os.kill(first[0], signal.SIGKILL)
            await wait_until(lambda: len(set(servers_of(server.pid)) - {first[0]}) == 2, 30)
            for n in range(10):
                assert await producer.enqueue(f"after-{n}")
            await wait_drained(operator, 60)
            producer.check(world.journal(), may_repeat=lambda id: id == "before")

            async def do_both_tell() -> bool:
                try:
                    return len(await connections(client, metrics_of(server))) == 2
                except httpx.TransportError:
                    return False

            await wait_until(do_both_tell)
        assert "server process died" in server.printed


@pytest.mark.deep("kills")
async def test_children_end_with_the_process_that_started_them(world: World) -> None:
    with trio.fail_after(60):
        server = world.serve("--data-dir", world.directory / "data", "--processes", "2")
        await server.wait_url()
        children = servers_of(server.pid)
        server.kill()
        await wait_until(lambda: not any(map(is_running, children)), 30)
        with redis.Redis(unix_socket_path=str(socket_path(world.directory / "data"))) as store:
            store.shutdown(nosave=True)  # it outlives a killed server; the next one on its data would end it


@pytest.mark.deep("kills")
async def test_children_that_cannot_begin_again_are_started_until_they_can(
    durable_store: Callable[[], stores.LocalServer], world: World
) -> None:
    store, log = durable_store(), "server process died; starting another"
    with trio.fail_after(120):
        server = world.serve("--store", store.url, "--store-timeout", "5", "--processes", "2")
        url = await server.wait_url()
        first = servers_of(server.pid)
        store.kill()
        for child in first:
            os.kill(child, signal.SIGKILL)
        await server.wait_printed(rf"{log} +in_s=.* why='code 2'")  # the code of a server whose store is away
        soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, hard))
        await server.wait_printed("Too many open files")
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
        store.start()
        async with producing(url) as producer:
            assert await producer.enqueue("after")
        await wait_until(lambda: len(set(servers_of(server.pid)) - set(first)) == 2)


@pytest.mark.deep("kills")
async def test_a_child_that_cannot_begin_ends_all(world: World) -> None:
    with trio.fail_after(60):
        server = world.serve("--store", "redis://127.0.0.1:1/0", "--store-timeout", "0.5", "--processes", "2")
        assert await server.wait() != 0
        assert "ended: code 2" in server.printed
        assert "Traceback" not in server.printed


async def test_a_port_that_another_program_or_fleet_has_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        (shared,) = shared_listeners("127.0.0.1", 0)
        async with shared:
            for name, taken in (("port", other), ("metrics_port", shared.socket)):
                port = taken.getsockname()[1]
                settings = evolve(Settings(port=0, processes=2), **{name: port})
                with (
                    trio.fail_after(30),
                    pytest.raises(SettingsError, match=f"port {port} on 127.0.0.1 cannot be") as e,
                ):
                    await serve_fleet(settings, "redis://127.0.0.1:1/0", trio.Event())
                assert e.value.field == name


def test_a_child_gets_all_settings_and_allows_its_part() -> None:
    settings = Settings(
        host="localhost", store="redis://x", grace=2.5, dev=True, origins=["https://a", "https://b"], processes=3,
        connections_per_address=0, max_connections=10,
    )  # fmt: skip
    part = part_of(settings)
    assert (part.max_connections, part.connections_per_address, part.connections_per_tenant) == (4, 0, 334)
    assert load_settings(None, environment_of(part), {}) == part
    assert load_settings(None, environment_of(Settings()), {}) == Settings()


@pytest.fixture
def run_instead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Have a line of the shell run in place of Python, as the program of children."""

    def run(line: str) -> None:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(program))

    return run


async def test_a_child_that_begins_while_the_fleet_stops_ends_too(
    monkeypatch: pytest.MonkeyPatch, run_instead: Callable[[str], None]
) -> None:
    open_process, opened = trio.lowlevel.open_process, list[trio.Process]()
    run_instead("echo ready && exec sleep 600")
    fleet = Fleet(Settings(), 1)

    async def open_late(*command: Any, **more: Any) -> trio.Process:
        if opened:
            await fleet.stop()
        opened.append(await open_process(*command, **more))
        return opened[-1]

    monkeypatch.setattr("trio.lowlevel.open_process", open_late)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            opened[0].kill()
    assert [each.returncode for each in opened] == [-signal.SIGKILL, -signal.SIGTERM]


async def test_what_a_child_of_a_fleet_runs_has_an_empty_standard_input(run_instead: Callable[[str], None]) -> None:
    run_instead("cat && echo ready && exec sleep 600")
    fleet = Fleet(Settings(), 1)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            await fleet.stop()


async def test_a_fleet_that_waits_to_start_a_child_again_stops_at_once(
    monkeypatch: pytest.MonkeyPatch, run_instead: Callable[[str], None]
) -> None:
    run_instead("echo ready")
    monkeypatch.setattr("fairq.server.fleet.RESTART_S", 3600.0)
    monkeypatch.setattr("fairq.server.fleet.MAX_RESTART_S", 3600.0)
    fleet = Fleet(Settings(), 1)
    with capture_logs() as logs, trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            await nursery.start(fleet.run)
            await wait_until(lambda: [line["event"] for line in logs] == ["server process died; starting another"])
            await fleet.stop()


async def test_a_fleet_whose_program_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    failed = pytest.RaisesExc(SettingsError, match="ended: code 1")
    with trio.fail_after(30), pytest.RaisesGroup(failed, flatten_subgroups=True):
        async with trio.open_nursery() as nursery:
            await nursery.start(Fleet(Settings(), 2).run)
