"""`fairq doctor` against real stores: a sound one, ones with a fault each, and one with a server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import redis
import trio

from fairq.cli.doctor import _ask_admin
from fairq.errors import SettingsError
from fairq.store import examination, library
from tests import clusters, stores
from tests.server.harness import daily
from tests.store.cases import case, raises_for
from tests.store.waiting import wait_for

from .harness import Commands, Finished, fairq_here

Start = Callable[..., stores.LocalServer]
NO_SERVER = ("--admin-url", "http://127.0.0.1:1")


def doctor(url: str, *more: str) -> Finished:
    """Run the command on a store."""
    return fairq_here("doctor", "--store", url, *NO_SERVER, "--json", *more)


def findings(done: Finished, level: str) -> dict[str, str]:
    """The findings of a level, by subject; each that is not ok has a remedy."""
    assert all(each["remedy"] for each in done.json["findings"] if each["level"] != "ok")
    return {each["subject"]: each["message"] for each in done.json["findings"] if each["level"] == level}


def test_a_sound_store_has_no_problems(start_store: Start) -> None:
    done = doctor(start_store({"appendfsync": "always"}).url)
    assert done.code == 0, done.out
    assert findings(done, "problem") == {}
    well = findings(done, "ok").keys()
    assert {"version", "persistence", "permissions", "library", "data", "connections", "network"} <= well
    assert findings(done, "warning").keys() <= {"round trip", "allocator"}, "this machine may be slow"


def test_of_a_store_that_tells_no_settings_nothing_is_promised(start_store: Start) -> None:
    store = start_store({"appendfsync": "everysec"})
    with stores.connect(stores.of_owner(store.url)) as owner:
        owner.execute_command("ACL", "SETUSER", "fairq", "-config|get")
    found = findings(doctor(store.url), "ok")["persistence"]
    assert found == "the append-only file is on; the store does not tell when it is synced"


FAULTS: list[tuple[dict[str, str], str, str, str]] = [
    ({"appendfsync": "everysec"}, "warning", "persistence", "up to a second"),
    ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "problem", "eviction", "allkeys-lru"),
    ({"maxmemory": "1mb"}, "warning", "memory", "% of maxmemory"),
    ({"appendonly": "no"}, "problem", "persistence", "appendonly is no"),
]


def test_a_fault_of_the_store_is_found(start_store: Start) -> None:
    store = start_store()
    with stores.connect(store.url) as client:
        usual = client.config_get("appendfsync", "maxmemory", "maxmemory-policy")
        for settings, level, subject, words in FAULTS:
            for name, value in {**usual, **settings}.items():
                client.config_set(name, value)
            with case(settings):
                done = doctor(store.url)
                assert done.code == (level == "problem")
                assert words in findings(done, level)[subject]


FAILOVERS = [  # replicas, how many a write needs, and what is said
    (0, 1, "warning", "has 0 replicas, and min-replicas-to-write is 1"),
    (1, 0, "ok", "has 1 replica"),
    (1, 1, "warning", "promoted replica takes no writes until it has 1"),
    (2, 0, "warning", "cut off from them it takes tasks"),
    (2, 1, "ok", "has 2 replicas"),
]


def test_what_a_failover_would_cost_is_reported(start_store: Start) -> None:
    primary, followers = start_store(), list[stores.LocalServer]()
    with stores.connect(primary.url) as client:
        for replicas, least, level, words in FAILOVERS:
            if replicas > len(followers):
                followers.append(start_store({"replicaof": f"{stores.HOST} {primary.port}"}))
            wait_for(lambda: client.info("replication")["connected_slaves"] == len(followers))
            client.config_set("min-replicas-to-write", least)
            with case(replicas, least):
                assert words in findings(doctor(primary.url), level)["replicas"]
        assert "wait" not in findings(doctor(primary.url), "warning")
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~fq:*", "&fq:*", "+@all", "-wait")
        done = doctor(stores.of_owner(primary.url).replace("redis://", "redis://poor:pw@"))
        assert "--wait-replicas does not start" in findings(done, "warning")["wait"]
    with stores.connect(followers[0].url) as client:
        wait_for(lambda: client.info("replication")["master_link_status"] == "up")
    assert "takes no writes" in findings(doctor(followers[0].url), "problem")["replicas"]


def test_a_store_that_is_away_or_refuses_the_password_is_a_problem(start_store: Start) -> None:
    server = start_store()
    with stores.connect(server.url) as client:
        client.config_set("requirepass", "secret")
    url = stores.of_owner(server.url)
    assert findings(doctor(url), "problem")["connection"].startswith("the store refused: NOAUTH")
    assert doctor(url.replace("redis://", "redis://:wrong@")).code == 1
    assert doctor(url.replace("redis://", "redis://:secret@")).code == 0
    server.stop()
    done = doctor(url.replace("redis://", "redis://:secret@"))
    assert (done.code, "secret" in done.out) == (1, False)
    for wrong, why in (("http://nonsense", "invalid store URL"), (f"{server.url}/x", "its database is not a number")):
        assert why in findings(doctor(wrong), "problem")["store"]


def test_permissions_that_lack_are_named_with_the_line_that_gives_them(commands: Commands, server_store: str) -> None:
    commands.enqueue("emails", "1")
    with stores.connect(server_store) as client:
        client.execute_command("ACL", "SETUSER", "poor", "on", ">pw", "~fq:*", "&fq:*", "+@all", "-zadd")
        try:
            done = doctor(stores.of_owner(server_store).replace("redis://", "redis://poor:pw@"))
        finally:
            client.execute_command("ACL", "DELUSER", "poor")
    assert "zadd" in findings(done, "problem")["permissions"].lower()
    (found,) = [each for each in done.json["findings"] if each["subject"] == "permissions"]
    assert "+zadd" in found["remedy"]


def test_old_libraries_are_found_and_pruned_and_ours_stays(commands: Commands, server_store: str) -> None:
    commands.enqueue("emails", "1")
    with stores.connect(server_store) as client:
        for name in ("fairq_0ld", "theirs"):
            client.function_load(f"#!lua name={name}\nredis.register_function('{name}', function() return 1 end)")
        assert "fairq_0ld" in findings(doctor(server_store), "warning")["library"]
        done = doctor(stores.of_owner(server_store), "--prune")
        assert "fairq_0ld" in findings(done, "ok")["pruned"].split(", ")  # of other tests there may be more
        left = {row[1].decode() for row in client.function_list()}
        assert left == {library.name(), "theirs"}
        client.function_delete("theirs")


def test_a_cluster_is_looked_over_node_by_node(cluster: clusters.Cluster) -> None:
    done = doctor(cluster.url)
    assert done.code == 0, done.out
    assert len({each["node"] for each in done.json["findings"] if each["subject"] == "version"}) == 3


@pytest.mark.parametrize(("ahead_s", "level"), [(5, "warning"), (-5, "warning"), (120, "problem")])
def test_a_clock_that_is_off_is_found(store_url: str, ahead_s: int, level: str) -> None:
    async def look() -> list[Any]:
        with stores.connect(store_url) as client:
            seconds, micros = client.time()
        now_ms = seconds * 1000 + micros / 1000 - ahead_s * 1000
        return [each async for each in examination.examine(store_url, lambda: now_ms)]

    (found,) = [each for each in trio.run(look) if each.subject == "clock"]
    assert found.level == level


def test_data_of_another_version_is_a_problem(redis_client: redis.Redis, store_url: str) -> None:
    redis_client.set("fq:data_version", "2")
    assert "version 2" in findings(doctor(store_url), "problem")["data"]


def test_tasks_that_wait_without_a_worker_are_reported(commands: Commands, server_store: str) -> None:
    commands.enqueue("emails", "1")
    done = commands("doctor", "--store", server_store, *NO_SERVER, "--json")
    assert "emails" in findings(done, "warning")["workers"]
    commands("queues", "hours", "emails", daily(round(time.time() * 1000), 60, 120))
    done = commands("doctor", "--store", server_store, *NO_SERVER, "--json")
    assert "workers" not in findings(done, "warning")  # at night nobody needs one


def test_a_listeners_answer_is_reported_and_a_token_goes_to_no_other_place(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        302: ("warning", "answers 302"),
        200: ("ok", "is ready"),
        503: ("problem", "is not ready: "),
        403: ("warning", "does not accept the token"),
    }

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response([*answers][len(asked)])
            asked.append(self.path)
            self.send_header("Location", f"{url}/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    asked: list[str] = []
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("http_proxy", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert _ask_admin("http://127.0.0.1:1", "secret") == []
        for level, shown in answers.values():
            (found,) = _ask_admin(url, "secret")
            assert (found.level, found.message) == (level, f"{url} {shown}")
        server.shutdown()
    assert asked == ["/readyz"] * len(answers)


def test_an_admin_url_that_is_none_is_refused() -> None:
    for url in ["127.0.0.1:7702", "http://", "http://[::1", "http://127.0.0.1:x"]:
        with case(url), raises_for("admin_url", SettingsError):
            _ask_admin(url, None)


def test_no_admin_listener_is_nothing_to_tell() -> None:
    assert _ask_admin("http://127.0.0.1:1", None) == []
