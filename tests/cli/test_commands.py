"""The commands that talk to a server: what they print, as tables and as JSON, and how they end."""

from __future__ import annotations

import io
import re
import signal
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import trio
import trio.testing

from fairq.cli import options
from fairq.cli.app import run
from fairq.errors import Unavailable
from fairq.model.checks import full_id
from fairq.model.texts import say_moment
from fairq.store import keys
from fairq.wire.client_session import ClientSession
from tests import stores
from tests.server.harness import OPERATOR, WORKER, raw, tenant

from .harness import TIMEOUTS, Commands, Finished, ServerThread, bury, check_error, read_until, started

LOST = '{"label": "", "role": "operator", "address": "a", "via": "http", "target": "x"}'


def lines(done: Finished) -> list[str]:
    """The lines of a table, without its frame."""
    assert done.code == 0, done.err
    return [line for line in done.out.splitlines() if any(c.isalnum() for c in line)]


def test_a_worker_is_shown_with_its_tasks_and_a_task_with_its_worker(commands: Commands, server: ServerThread) -> None:
    id = commands.enqueue("emails", "1")
    assert "no worker is attached" in commands("workers", "list").out
    listed = lines(commands("queues", "list"))
    assert listed[-1] == "nobody takes these: tasks wait, and no worker is attached: emails"
    assert commands("queues", "list", "--json").json[0]["takers"] == "none"
    attached, seen = threading.Event(), trio.Event()

    async def hold() -> None:
        async with raw(server.served, WORKER) as worker:
            await worker.attach("emails", "unmade", name="mill")
            await worker.pushed()
            attached.set()
            await seen.wait()

    async def end() -> None:
        seen.set()

    thread = threading.Thread(target=server.call, args=(hold,))
    thread.start()
    try:
        assert attached.wait(30)
        shown = commands("workers", "show", "mill", "--json").json
        assert [(each["id"], each["attempt"]) for each in shown["tasks"]] == [(f"ada/{id}", 1)]
        table = "\n".join(lines(commands("workers", "show", "mill")))
        assert "tasks of mill" in table
        for command in ("queues list", "tenants list emails", "workers list", "tasks list emails", "top --once"):
            heads = " ".join(lines(commands(*command.split())))
            assert ("running" in heads, "leased" in heads, "held" in heads) == (True, False, False), command
        assert id in table
        assert commands("tasks", "show", "emails", f"ada/{id}", "--json").json[0]["worker"] == "mill"
        commands.enqueue("emails", "2")
        assert commands("queues", "list", "--json").json[0]["takers"] == "some"
        assert commands("queues", "set", "unmade", "max_attempts=3").err == "fairq: queue unmade is new\n"
    finally:
        server.call(end)
        thread.join(30)


def test_what_a_command_makes_by_its_name_is_reported(commands: Commands) -> None:
    commands.enqueue("emails", "1")
    done = commands("queues", "set", "emials", "max_attempts=3")
    assert (done.code, done.err) == (0, "fairq: queue emials is new; did you mean emails?\n")
    assert commands("queues", "set", "emials", "max_attempts=4").err == ""
    changes = (["set-weight", "emails", "aba", "2"], ["pause", "emails", "abba"], ["hours", "emails", "x", "8:00-9:00"])
    for argv, question in zip(changes, ("; did you mean ada?", "; did you mean aba?", ""), strict=True):
        done = commands("tenants", *argv)
        assert (done.code, done.err) == (0, f"fairq: tenant {argv[2]} of emails is new{question}\n")
        assert commands("tenants", *argv).err == ""
    done = commands("tenants", "set-limits", "unlike", "ada", "--queued", "5")
    assert done.err == "fairq: queue unlike is new\n"


def test_dead_letters_that_do_not_match_are_counted(commands: Commands, server: ServerThread) -> None:
    assert commands("dead", "list", "emails", "--error", "503").out == "queue emails has no dead letters\n"
    bury(server, "ada", ["a", "b", "c"])
    assert commands("dead", "list", "emails", "--error", "503").out == "none of the 3 dead letters of emails match\n"


def test_times_are_written_for_people(commands: Commands) -> None:
    commands.enqueue("emails", "1", "--id", "a", "--delay", "1h30m")
    done = commands("tasks", "show", "emails", "ada/a")
    at_ms = commands("tasks", "show", "emails", "ada/a", "--json").json[0]["at_ms"]
    assert f"starts at {say_moment(at_ms)}" in done.out
    commands("tasks", "reschedule", "emails", "ada/a", "--delay", "0")
    enqueued_ms = commands("tasks", "peek", "emails", "--tenant", "ada", "--json").json[0]["enqueued_at_ms"]
    assert say_moment(enqueued_ms) in commands("tasks", "peek", "emails", "--tenant", "ada").out


def test_a_variable_that_nothing_reads_is_reported(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQ_TOKN", "x")
    monkeypatch.setenv("FAIRQ_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("FAIRQ_MAX_CONNECTIONS", "10")
    done = commands("queues", "list")
    assert (done.code, done.err) == (0, "fairq: nothing reads the variable FAIRQ_TOKN; did you mean FAIRQ_TOKEN?\n")


def test_enqueue_prints_the_id_or_json(commands: Commands, server: ServerThread) -> None:
    id = commands.enqueue("emails", '{"to": "ada"}')
    assert len(id) == 36
    as_json = commands("enqueue", "emails", "1", "--id", "mine", "--json", token=tenant("ada")).json
    assert as_json == {"id": "mine", "queue": "emails", "duplicate": False, "replaced": False}
    again = commands("enqueue", "emails", "2", "--id", "mine", "--json", token=tenant("ada")).json
    assert again["duplicate"] is True
    assert server.call(server.served.app.store.queue, "emails").ready == 2


def test_enqueue_takes_options_and_standard_input(
    commands: Commands, server: ServerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"from": "stdin"}')))
    id = commands.enqueue("emails", "-", "--delay", "60", "--expires-in", "120", "--max-attempts", "3")
    (state,) = server.call(server.served.app.store.tasks, "emails", [full_id("ada", id)])
    assert state.state == "delayed"
    assert len(commands.enqueue("emails", "-5")) == 36


def test_enqueue_takes_times_of_day_a_batch_and_how_long_a_result_is_kept(
    commands: Commands, server: ServerThread
) -> None:
    far = datetime(2096, 2, 29, 9, tzinfo=timezone(timedelta(hours=1)))
    server.call(server.served.app.store.open_batch, "emails", "ada", "ada/b", 0, [b"", b"", b""])
    times = ("--start-at", far.isoformat(), "--expires-at", str(far.timestamp() + 60))
    id = commands.enqueue("emails", "1", *times, "--batch", "b", "--result-ttl", "1h")
    (state,) = commands("tasks", "show", "emails", f"ada/{id}", "--json").json
    assert (state["state"], state["at_ms"]) == ("delayed", int(far.timestamp() * 1000))
    assert commands("batches", "show", "emails", "b", "--json", token=tenant("ada")).json["total"] == 1
    for argv, field in (
        (["1", "--start-at", "2096-02-29T09:00:00"], "start_at must have a time zone"),
        (["1", "--start-at", far.isoformat(), "--delay", "5"], "not both"),
        (["1", "--expires-at", "noon"], "expires-at"),
        (["--lines", "-", "--batch", "b"], "--batch cannot be used with a file"),
    ):
        done = commands("enqueue", "emails", *argv, token=tenant("ada"))
        assert (done.code, field in done.err) == (2, True), done


def test_tasks_are_shown_peeked_rescheduled_and_cancelled(commands: Commands) -> None:
    argv = ["emails", "1", "--id", "t-1", "--priority", "3", "--dedupe-key", "k", "--delay", "60"]
    ada = tenant("ada")
    assert commands("enqueue", *argv, token=ada).out == "t-1\n"
    first = commands("enqueue", "emails", "2", "--dedupe-key", "k", "--json", token=ada)
    assert first.json == {
        "id": "t-1", "queue": "emails", "duplicate": True, "replaced": False, "duplicate_of_state": "delayed",
    }  # fmt: skip
    assert first.err == "fairq: not enqueued: task t-1 is known, and is delayed\n"
    assert "delayed" in commands("tasks", "show", "emails", "ada/t-1").out
    assert commands("tasks", "peek", "emails", "--tenant", "ada").out.startswith("nothing is ready")
    assert commands("tasks", "reschedule", "emails", "ada/t-1").out == "ada/t-1: ok\n"
    (row,) = commands("tasks", "peek", "emails", "--tenant", "ada", "--json").json
    assert (row["id"], row["payload"]) == ("ada/t-1", 1)
    assert commands("tasks", "cancel", "emails", "ada/t-1").out == "ada/t-1: ok\n"
    again = commands("tasks", "cancel", "emails", "ada/t-1", "--json")
    assert (again.code, again.json) == (1, [{"id": "ada/t-1", "outcome": "gone"}])
    (state,) = commands("tasks", "show", "emails", "ada/t-1", "--json").json
    assert state["state"] == "cancelled"


def test_tenants_are_listed_weighted_paused_and_resumed(commands: Commands) -> None:
    commands.enqueue("emails", "1", name="ada")
    commands.enqueue("emails", "2", name="bob")
    assert "weight 1 -> 2.5" in commands("tenants", "set-weight", "emails", "ada", "2.5").out
    assert "paused" in commands("tenants", "pause", "emails", "bob").out
    rows = {row["tenant"]: row for row in commands("tenants", "list", "emails", "--json").json}
    assert (rows["ada"]["weight"], rows["ada"]["ready"], rows["ada"]["is_paused"]) == (2.5, 1, False)
    assert rows["bob"]["is_paused"] is True
    table = lines(commands("tenants", "list", "emails"))
    ada, bob = (next(line for line in table if name in line) for name in ("ada", "bob"))
    assert "2.5" in ada
    assert "yes" in bob
    assert "resumed" in commands("tenants", "resume", "emails", "bob").out
    slip = commands("tenants", "resume", "emails", "bobb")
    assert slip.out == "bobb in emails: it was not paused\n"
    assert slip.err == "fairq: tenant bobb of emails is new; did you mean bob?\n"
    assert not any(row["is_paused"] for row in commands("tenants", "list", "emails", "--json").json)


def test_queues_are_listed_set_paused_and_resumed(commands: Commands) -> None:
    assert "no queues yet" in commands("queues", "list").out
    assert commands("queues", "list", "--json").json == []
    for number in range(1_234 // 617):
        commands.enqueue("emails", str(number))
    commands("queues", "set", "emails", "share=count", "lease-ms=5000", "max_attempts=9")
    (row,) = commands("queues", "list", "--json").json
    assert (row["queue"], row["ready"], row["settings"]["share"], row["settings"]["lease_ms"]) == (
        "emails", 2, "count", 5000,
    )  # fmt: skip
    assert row["settings"]["max_attempts"] == 9
    output = commands("queues", "show", "emails").out
    assert re.search(r"max_attempts\W+9\W+25\W", output)
    assert "retries: 9 attempts, with waits of 2 min 7 s in all on average, 4 min 15 s at most" in output
    assert commands("queues", "show", "emails", "--json").json == row
    commands("queues", "set", "emails", "max_attempts=0")
    assert "are tried until they succeed" in commands("queues", "show", "emails").out
    assert "there is no queue mails" in commands("queues", "show", "mails").err
    for text, percent in (("20%", 20), ("0.07", 7), ("0", 0), ("90%", 90)):
        commands("queues", "set", "emails", f"reserve={text}")
        (row,) = commands("queues", "list", "--json").json
        assert (row["settings"]["reserve"], row["slots"], row["kept"], row["idle"]) == (percent, 0, 0, 0)
    assert re.search(r"reserve\W+90%\W+0%\W", commands("queues", "show", "emails").out)
    table = lines(commands("queues", "list"))
    assert any("emails" in line and "count" in line and " 2 " in line for line in table)
    assert "paused" in commands("queues", "pause", "emails").out
    assert commands("queues", "list", "--json").json[0]["is_paused"] is True
    assert "resumed" in commands("queues", "resume", "emails").out
    assert commands("queues", "resume", "emails").out == "emails: it was not paused\n"
    slip = commands("queues", "resume", "emailz")
    assert slip.err == "fairq: queue emailz is new; did you mean emails?\n"


def test_tokens_have_labels_and_expire(commands: Commands) -> None:
    made = commands("tokens", "create", "viewer", "--label", "Ann", "--expires-after", "90d", "--json").json
    assert (made["role"], made["label"]) == ("viewer", "Ann")
    (row,) = commands("tokens", "list", "--json").json
    assert row["expires_at_ms"] - row["created_at_ms"] == 90 * 86_400_000
    heads = commands("tokens", "list").out
    assert all(word in heads for word in ("label", "expires", "last used", "Ann"))
    viewer = made["token"]
    assert commands("queues", "list", token=viewer).code == 0
    check_error(commands("tenants", "set-weight", "emails", "ada", "2", token=viewer), 1, "viewer tokens may not send")


def test_the_audit_tells_who_changed_what(commands: Commands) -> None:
    assert "nothing was changed" in commands("audit").out
    commands("tenants", "set-weight", "emails", "ada", "2.5")
    commands("tenants", "set-limits", "emails", "ada", "--rate", "5")
    commands("queues", "pause", "images")
    found = commands("audit", "--json").json
    assert [change["verb"] for change in found] == ["set_paused", "set_limits", "set_weight"]
    table = commands("audit", "--queue", "emails", "--since", "1h").out
    assert "set_paused" not in table
    for word in ("dev-operator", "127.0.0.1", "set_weight", "emails ada", "weight 2.5", "rate 5"):
        assert word in table, table
    assert [change["verb"] for change in commands("audit", "--count", "1", "--json").json] == ["set_paused"]


def test_the_audit_is_followed_until_it_is_interrupted(commands: Commands, server_store: str) -> None:
    commands("tenants", "set-weight", "emails", "ada", "2")
    with started("audit", "--follow", "--url", commands.url, "--token", OPERATOR) as following:
        assert "set_weight  emails ada  1.0 -> weight 2" in read_until(following, "set_weight")
        commands("queues", "pause", "emails")
        assert "emails" in read_until(following, "set_paused")
        with stores.connect(server_store) as client:  # a change whose server died long ago
            client.delete(f"{keys.AUDIT}:begun")
            lost: dict[Any, Any] = {"token": "t", "verb": "purge", "queue": "q", "tenant": "", "change": LOST}
            client.xadd(f"{keys.AUDIT}:begun", lost, id="1-0")
        assert "purge" in read_until(following, "unknown")
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130
        assert following.stdout is not None
        assert "Traceback" not in following.stdout.read()


def test_of_two_operators_the_second_learns_that_it_is_late(commands: Commands) -> None:
    commands("tenants", "set-weight", "emails", "ada", "2")
    (row,) = commands("tenants", "list", "emails", "--json").json
    assert row["version"] in commands("tenants", "list", "emails").out
    weigh = ("tenants", "set-weight", "emails", "ada")
    assert commands(*weigh, "3", "--if-version", row["version"]).code == 0
    check_error(commands(*weigh, "4", "--if-version", row["version"]), 1, "another operator has changed it", "now")
    held = commands("tenants", "limits", "emails", "ada", "--json").json
    limit = ("tenants", "set-limits", "emails", "ada", "--if-version", held["version"])
    assert commands(*limit, "--rate", "5").code == 0
    assert commands(*limit, "--rate", "6").code == 1
    hours = ("tenants", "hours", "emails", "ada", "mon 8:00-9:00 UTC", "--if-version", held["hours_version"])
    assert commands(*hours).code == 0
    assert commands("queues", "set", "emails", "lease_ms=500", "--if-version", "0" * 12).code == 1


def test_tokens_are_created_listed_used_and_revoked(commands: Commands) -> None:
    token = commands("tokens", "create", "tenant", "--tenant", "ada", "--queue", "emails").out.strip()
    made = commands("tokens", "create", "worker", "--json").json
    assert made["token"].startswith("fq_worker_")
    rows = {row["id"]: row for row in commands("tokens", "list", "--json").json}
    assert set(rows) == {made["id"], token.split("_")[2]}
    assert rows[token.split("_")[2]]["tenant"] == "ada"
    listing = commands("tokens", "list").out
    assert "ada" in listing
    assert "emails" in listing
    assert token not in listing
    assert token.split("_")[3] not in listing
    assert commands("enqueue", "emails", "1", token=token).code == 0
    check_error(commands("enqueue", "images", "1", token=token), 1, "images")
    assert commands("tokens", "revoke", token).out == f"{token.split('_')[2]}: revoked\n"
    check_error(commands("enqueue", "emails", "1", token=token), 1, "token")
    mistyped = commands("tokens", "revoke", made["token"][:-1])
    check_error(mistyped, 2, "id must be")
    assert made["token"][:-1] not in mistyped.err


def test_without_a_token_or_with_a_wrong_one_a_command_says_what_is_needed(commands: Commands) -> None:
    check_error(commands("queues", "list", token=None), 2, "token", "FAIRQ_TOKEN")
    check_error(commands("queues", "list", token="wrong"), 1, "token")
    check_error(commands("queues", "list", token=tenant("ada")), 1, "tenant")


def test_url_and_token_may_come_from_the_environment(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fairq.cli.app import run

    monkeypatch.setenv("FAIRQ_URL", f"ws://127.0.0.1:{stores.free_port()}, {commands.url}")
    monkeypatch.setenv("FAIRQ_TOKEN", tenant("ada"))
    assert run(["enqueue", "emails", "1"]) == 0
    assert len(capsys.readouterr().out.strip()) == 36


@pytest.mark.parametrize("url", ["http://x", "ws://"])
def test_a_url_that_is_none_is_a_mistake(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    check_error(Commands(url, capsys)("queues", "list"), 2, "URL")


def test_without_a_server_a_command_says_that_it_waits_and_gives_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "_QUIET_S", 0.1)
    url = f"ws://127.0.0.1:{stores.free_port()}"

    def says_so(seconds: str) -> bool:
        done = Commands(url, capsys)("enqueue", "emails", "1", "--timeout", seconds, token=tenant("ada"))
        assert done.code == 1
        return [line.partition(f" ({url} cannot be reached: ")[0] for line in done.err.splitlines()] == [
            f"fairq: no answer yet; trying for {seconds} s",
            "fairq: no connection to the server in time; nothing was done",
        ]

    assert any(map(says_so, TIMEOUTS))


def test_without_a_store_a_command_says_that_it_waits_and_gives_up(
    start_store: Callable[[], stores.LocalServer], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = start_store()
    server = ServerThread(store.url)
    server.start()
    commands = Commands(server.url, capsys)
    commands.enqueue("emails", "1")
    store.kill()
    monkeypatch.setattr(options, "_QUIET_S", 0.1)

    def says_so(seconds: str) -> bool:
        done = commands("enqueue", "emails", "1", "--timeout", seconds, token=tenant("ada"))
        assert done.code == 1
        *logged, ended = done.err.splitlines()
        said = f"fairq: no answer yet; trying for {seconds} s ({ended.removeprefix('fairq: ')})"
        return logged == [said] and "store" in ended

    assert any(map(says_so, TIMEOUTS))
    server.stop()


def test_a_command_that_is_connected_does_not_say_that_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    trio.run(options._tell_waiting, ClientSession(is_open=True), 10.0, clock=trio.testing.MockClock(0, 0))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("way", ["alone", "among others", "followed by another"])
def test_ctrl_c_is_reported_by_the_exit_code_whatever_comes_with_it(
    way: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if way == "alone":
            raise KeyboardInterrupt
        if way == "among others":
            raise BaseExceptionGroup("ends", [Unavailable("gone"), KeyboardInterrupt()])
        try:
            raise KeyboardInterrupt
        finally:
            raise Unavailable("gone")

    monkeypatch.setattr("fairq.cli.app.commands", lambda is_listing: interrupted)
    assert run(["queues", "list"]) == 130
    assert "gone" not in capsys.readouterr().err
