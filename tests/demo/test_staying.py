"""What a demonstration leaves up, and how it is ended: only processes that are still its own."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import orjson
import pytest

from fairq.demo import staying
from fairq.demo.processes import HANDLERS, Service
from fairq.errors import SettingsError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a demonstration in a place of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(staying, "FOLDER", Path("fairq-demo"))
    return tmp_path / "fairq-demo"


def sleeper(*words: str) -> subprocess.Popen[bytes]:
    """A process that lasts, with these words in its command line."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])


def test_a_folder_goes_unless_something_stays_in_it(folder: Path) -> None:
    with staying.folder_of_its_own() as made:
        assert made == folder
    assert not folder.exists()
    with staying.folder_of_its_own() as made:
        staying.note(made, {"server": 0})
    assert orjson.loads((folder / "processes.json").read_bytes()) == {"server": 0}


def test_what_stays_is_ended_but_no_process_that_has_its_id_by_now(folder: Path) -> None:
    worker, other = sleeper(HANDLERS), sleeper("somebody's")
    try:
        with staying.folder_of_its_own() as made:
            staying.note(made, {"worker-1": worker.pid, "server": other.pid})
        assert staying.running() == {"worker-1": worker.pid}
        with pytest.raises(SettingsError, match="a demo is already running"), staying.folder_of_its_own():
            pass
        Thread(target=worker.wait).start()  # a child of this process is there until it is waited for
        assert staying.end()
        assert worker.wait(10) == -signal.SIGTERM
        assert other.poll() is None
        assert not folder.exists()
        assert not staying.end()
    finally:
        for each in (worker, other):
            each.kill()
            each.wait()


def test_a_folder_of_that_name_is_left_alone(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine").touch()
    with pytest.raises(SettingsError, match="already exists"), staying.folder_of_its_own():
        pass
    assert not staying.end()
    assert (folder / "mine").exists()


def test_a_port_that_is_taken_is_reported_before_anything_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(staying, "PORT", port)
        with pytest.raises(SettingsError, match=f"port {port} is taken; .* fairq demo --end"):
            staying.check_ports()


def test_it_says_where_all_is(folder: Path) -> None:
    service = Service("ws://127.0.0.1:7700", "http://127.0.0.1:7701", "http://127.0.0.1:7702", folder, {})
    found = staying.describe(service)
    assert all(address in found for address in (service.url, service.http, service.admin))
    assert "fairq demo --end" in found
