"""A worker in JavaScript, written from PROTOCOL.md alone."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import fairq.sync
from tests.cli.harness import environment, read_until, started
from tests.store.waiting import wait_for
from tests.stores import free_port

HERE = Path(__file__).parent / "node"
MAX_LINES = 60

pytestmark = pytest.mark.deep("frameworks")  # it needs Node, and fetches a package


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the worker and the package `ws`."""
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(HERE, folder, dirs_exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "ws@8"], cwd=folder, check=True, timeout=120)
    return folder


@contextmanager
def worker(folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the worker while the block lasts; SIGTERM ends it."""
    variables = environment({"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"})
    process = subprocess.Popen(["node", "jobs.mjs"], cwd=folder, env=variables)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_it_works_off_tasks_of_every_length(shop: fairq.sync.Client, url: str, folder: Path) -> None:
    with worker(folder, url) as process:
        texts = ["", "x" * 100_000]  # the second travels beside its frame
        payloads = [{"to": number, "text": text} for number, text in enumerate(texts)]
        tasks = shop.enqueue_many("emails", [*payloads, {"to": 2, "fail": True}], result_ttl=60)
        assert [task.result(timeout=60) for task in tasks] == [
            {"sent": 0, "attempt": 1, "size": 0},
            {"sent": 1, "attempt": 1, "size": 100_000},
            {"sent": 2, "attempt": 2, "size": 0},
        ]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_it_stops_what_is_cancelled_and_goes_on(shop: fairq.sync.Client, url: str, folder: Path) -> None:
    with worker(folder, url):
        long = shop.enqueue("emails", {"forever": True}, result_ttl=60)
        after = shop.enqueue("emails", {"to": 1}, result_ttl=60)
        assert after.result(timeout=60)["sent"] == 1
        assert long.cancel() == "running"
        with pytest.raises(fairq.TaskFailed, match="cancelled"):
            long.result(timeout=60)


def test_it_brings_its_leases_to_a_server_that_was_killed_and_came_back(folder: Path, tmp_path: Path) -> None:
    down, up, journal, data = (tmp_path / name for name in ("down", "up", "journal", "data"))
    port = str(free_port())
    serve, url = ("serve", "--dev", "--port", port, "--http-port", "0", "--data-dir", data), f"ws://127.0.0.1:{port}"
    with fairq.sync.open_client(url, token="dev-tenant:shop") as shop, worker(folder, url):
        with started(*serve) as server:
            read_until(server, "ws://")
            payloads = [{"journal": str(journal), "until": str(until)} for until in (down, down, up, up)]
            tasks = shop.enqueue_many("emails", payloads, result_ttl=60)
            wait_for(lambda: journal.exists() and len(journal.read_text().splitlines()) == len(tasks))
            server.kill()
            server.wait(30)
        down.touch()  # two end while there is no server, two after it has come back
        with started(*serve) as server:
            read_until(server, "ws://")
            assert [task.result(timeout=60)["attempt"] for task in tasks[:2]] == [1, 1]
            tasks += shop.enqueue_many("emails", [{"journal": str(journal)}] * 20, result_ttl=60)
            up.touch()
            assert [task.result(timeout=60)["attempt"] for task in tasks] == [1] * 24
    assert sorted(journal.read_text().splitlines()) == sorted(f"shop/{task.id} 1" for task in tasks)


def test_fetch_enqueues_and_waits_for_the_result(url: str, urls: tuple[str, str], folder: Path) -> None:
    variables = environment({"FAIRQ_HTTP_URL": urls[1], "FAIRQ_TOKEN": "dev-tenant:shop"})
    command = ["node", "enqueue.mjs", '{"to": "ada"}', "order-1"]
    with worker(folder, url):
        for outcome in ("ok", "duplicate"):
            ran = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=60)
            assert (ran.stdout, ran.stderr) == (f'{outcome} {{"sent":"ada","attempt":1,"size":0}}\n', "")
    variables["FAIRQ_TOKEN"] = "nonsense"
    ran = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert "401 unauthorized" in ran.stderr


def test_it_is_short_enough_to_be_copied() -> None:
    assert len((HERE / "worker.mjs").read_text().splitlines()) <= MAX_LINES
