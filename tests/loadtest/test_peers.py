"""The peers' part of the load test, without the network: arithmetic, the scripts' protocol, what is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from loadtest.peers import driving, environments, scenario
from loadtest.peers.catalogue import PEERS, chosen
from loadtest.peers.catalogue import VARIABLE as PEER_VARIABLE
from loadtest.peers.driving import Start, count_starts, read_starts, running_producer, running_workers, wait_for
from loadtest.peers.environments import SCRIPTS, VARIABLE, Environment
from loadtest.peers.measuring import ids_of
from loadtest.peers.stores import running_store
from loadtest.processes import RunFailed
from loadtest.report import Progress
from tests.processes import commands, is_running

ROOT = Path(__file__).resolve().parents[2]
# a peer that keeps its tasks in a file, and does them when it is ordered to work
PEER_SCRIPT = """
import asyncio, sys, time
import peerlib

class Client:
    def __init__(self):
        self.count = 0
    def one(self, payload):
        return self.many([payload])
    async def many(self, payloads):
        with open(peerlib.SETTINGS["tasks"], "a") as file:
            file.writelines(payload + "\\n" for payload in payloads)
        self.count += len(payloads)
    def left(self):
        print("this is no answer")
        return self.count

if sys.argv[1] == "produce":
    asyncio.run(peerlib.serve(Client()))
for payload in open(peerlib.SETTINGS["tasks"]):
    peerlib.handle(payload.strip())
time.sleep(60)
"""


@pytest.fixture
def peers_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for environments."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "peers"))
    return tmp_path / "peers"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """The environment of a peer that needs nothing."""
    script = tmp_path / "script.py"
    script.write_text(PEER_SCRIPT)
    return Environment((sys.executable, str(script)), {})


def test_line_that_is_not_complete_is_no_start_yet(tmp_path: Path) -> None:
    record = tmp_path / "record"
    assert (read_starts(record), count_starts(record)) == ([], 0)
    line = f"many{7:08d} {1_000_000:016d} {999_000:016d}\n"
    record.write_text(line + line[:20])
    assert read_starts(record) == [Start("many00000007", 1_000_000, 999_000)]
    assert count_starts(record) == 1


async def test_orders_are_done_and_starts_noted_by_id(environment: Environment, tmp_path: Path) -> None:
    record = tmp_path / "record"
    settings = {"record": str(record), "tasks": str(tmp_path / "tasks")}
    with trio.fail_after(30):
        async with running_producer(environment, settings, tmp_path / "log") as producer:
            done = await producer.order(do="one", prefix="one-", count=3)
            assert done["seconds"] > 0
            await producer.order(do="many", prefix="many", count=1_500, ms=0, tenant="quiet")
            assert await producer.order(do="left") == {"left": 1_503}
        async with running_workers(environment, settings, tmp_path / "log", processes=1):
            await wait_for("the tasks", lambda: count_starts(record), 1_503)
    starts = read_starts(record)
    assert [start.id for start in starts] == [*ids_of("one-", 3), *ids_of("many", 1_500)]
    assert all(start.enqueued_us <= start.started_us for start in starts)


def test_payload_has_its_size_and_the_scripts_agree_on_the_line() -> None:
    text = "import peerlib; print(len(peerlib.payload_of('many', 1, 5)))"
    command = [sys.executable, "-c", text]
    variables = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    assert int(subprocess.run(command, env=variables, capture_output=True, check=True).stdout) == scenario.PAYLOAD_BYTES
    assert f"lines of {driving.LINE_BYTES} bytes" in (SCRIPTS / "peer_bullmq.js").read_text()


def test_catalogue_names_each_peer_once_with_its_script_and_setting() -> None:
    assert len({peer.name for peer in PEERS}) == len(PEERS)
    for peer in PEERS:
        assert (SCRIPTS / peer.script).is_file()
        assert peer.setting
        assert bool(peer.environment) == bool(peer.pip or peer.npm or peer.apt)


@pytest.mark.usefixtures("peers_directory")
async def test_quick_run_installs_nothing_and_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_program", lambda *_: "")
    found, missing = await scenario.environments(Progress(), quick=True)
    assert [peer.name for peer, _ in found] == ["raw, pipelined", "raw, one call each", "fairq", "fairq, 100"]
    assert "pip install" in missing["RQ"]
    assert "npm install" in missing["BullMQ"]
    assert missing["BullMQ, PostgreSQL"].endswith("; apt-get install postgresql")
    assert missing["NATS JetStream"].endswith("; apt-get install nats-server")


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("RQ", ["RQ"]),
        ("fairq,BullMQ", ["fairq", "fairq, 100", "BullMQ", "BullMQ, PostgreSQL"]),
        ("", [p.name for p in PEERS]),
    ],
)
def test_a_name_chooses_all_that_are_named_so(monkeypatch: pytest.MonkeyPatch, value: str, names: list[str]) -> None:
    monkeypatch.setenv(PEER_VARIABLE, value)
    assert [peer.name for peer in chosen()] == names


POSTGRES = next(peer for peer in PEERS if peer.store == "postgres")


@pytest.mark.deep("loadtest")
@pytest.mark.parametrize(("fsync", "waits"), [("always", "on"), ("everysec", "off")])
async def test_postgres_waits_for_the_disk_as_it_is_set_and_ends(tmp_path: Path, fsync: str, waits: str) -> None:
    with trio.fail_after(120):
        async with running_store(POSTGRES, "", tmp_path, fsync) as store:
            pid = store.pids["store"]
            assert store.bytes_used() > 0
            assert f"synchronous_commit={waits}" in dict(commands())[pid]
            await (await trio.open_tcp_stream("127.0.0.1", store.settings["port"])).aclose()
    assert not is_running(pid)


@pytest.mark.deep("loadtest")
async def test_postgres_that_was_killed_fails_its_run_alone(tmp_path: Path) -> None:
    async def kill() -> None:
        async with running_store(POSTGRES, "", tmp_path, "always") as store:
            os.kill(store.pids["store"], signal.SIGKILL)
            await wait_for("its end", lambda: int(not is_running(store.pids["store"])), 1)

    with trio.fail_after(120), pytest.raises(RunFailed, match="PostgreSQL"):
        await kill()
