"""How an enqueued task is kept, and by which clock; the state machine has the rest (machine.py)."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.model.queue.remembered import bytes_of_id

from .calls import Queue, options, refused
from .keyspace import Keyspace

HOUR = 3_600_000


def test_time_and_random_values_are_the_callers_only_behind_the_test_gate(queue: Queue) -> None:
    queue.client.delete(queue.key("test"))
    refused(queue, "forbidden now", "enqueue", "ada", "a", "", "")
    queue.uses_store_time = True
    refused(queue, "forbidden now", "enqueue", "ada", "a", "", "", random_values=b"\0" * 8)
    assert queue.enqueue("ada", "a") == ["ok"]


def test_without_a_given_time_the_store_tells_it_and_it_never_goes_back(queue: Queue) -> None:
    queue.uses_store_time = True
    seconds, _ = queue.client.time()
    queue.enqueue("ada", "a")
    assert abs(queue.queue_state()["now"] - seconds * 1000) < 60_000
    queue.uses_store_time, queue.now, found = False, seconds * 1000 - 50_000, queue.queue_state()["now"]
    queue.enqueue("ada", "b", delay=1)
    assert queue.queue_state()["now"] == found
    assert queue.tasks("b")[0].at == queue.queue_state()["now"] + 1


def test_tenants_have_the_names_that_products_give_them(queue: Queue) -> None:
    tenants = ["org_2AbC", "a", "Ada.Lovelace@example.com", "+45-1.2_3", "x" * 128]
    for tenant in tenants:
        assert queue.enqueue(tenant, f"{tenant}/1", f"{tenant}/2", delay=10) == ["ok", "ok"]
    queue.advance(10)
    queue.tick()
    for lease in queue.claim(5):
        assert queue.end("nack", lease, delay=0) == "ok"
    assert [queue.tenant(tenant).ready for tenant in tenants] == [2] * 5


def test_a_replacement_takes_the_bytes_that_the_replaced_task_leaves(queue: Queue) -> None:
    queue.enqueue("ada", "a", dedupe_key="k")
    most = queue.tenant("ada").bytes + 2 * bytes_of_id("a")  # but for the ids, which are remembered
    queue.set_limits("ada", stored_bytes=most - 1)
    given = options(dedupe_key="k", replace=1)
    refused(queue, "quota_exceeded", "enqueue", "ada", *(part for id in "bc" for part in (id, given, b"{}")))
    queue.set_limits("ada", stored_bytes=most)
    assert queue.enqueue("ada", "b", "c", dedupe_key="k", replace=1) == ["replaced"] * 2


def test_a_key_that_outlives_its_task_does_not_have_another_task_of_that_id_replaced(queue: Queue) -> None:
    queue.enqueue("ada", "a", dedupe_key="k", dedupe_period=300_000)
    queue.end("ack", queue.claim()[0])
    queue.advance(180_000)
    queue.tick()
    assert queue.enqueue("ada", "a") == ["ok"], "its id is forgotten"
    assert queue.enqueue("ada", "b", dedupe_key="k", replace=1) == ["duplicate a\nready"]
    assert queue.state("a") == "ready"


@pytest.mark.parametrize(
    ("how", "state"),
    [
        ("delayed", "cancelled"), ("waiting", "cancelled"), ("running", "cancelled"), ("of a batch", "cancelled"),
        ("purged", "dead"), ("trimmed", "dead"), ("replayed", "leased"), ("done", "done"), ("dead", "dead"),
        ("expired", "dead"),
    ],
)  # fmt: skip
def test_a_key_of_a_period_is_free_once_its_task_can_run_no_more(queue: Queue, how: str, state: str) -> None:
    queue.open_batch("b")
    before = queue.tenant("ada").bytes
    window = {"delay": 1000} if how == "delayed" else {"expires_in": 1} if how == "expired" else {}
    queue.enqueue("ada", "a", dedupe_key="k", dedupe_period=HOUR, **({"batch": "b"} if how == "of a batch" else window))
    leases = queue.claim() if how not in ("delayed", "waiting", "of a batch", "expired") else []
    if how == "of a batch":
        queue.call("close_batch", "b", "cancel")
    elif how in ("delayed", "waiting", "running"):
        queue.cancel("a")
    queue.advance(1)
    queue.tick()
    for lease in leases:
        queue.end({"done": "ack", "running": "nack"}.get(how, "reject"), lease)
    if how == "replayed":
        queue.call("replay", "a")
        queue.claim()
    elif how == "purged":
        queue.call("purge", "a")
    elif how == "trimmed":
        queue.call("configure", "dead_keep", 0)
        queue.tick()
    is_free = how in ("delayed", "waiting", "running", "of a batch", "purged", "trimmed")
    assert queue.enqueue("ada", "a") == [f"duplicate\n{state}"]
    if is_free:
        assert queue.tenant("ada").bytes == before + bytes_of_id("a"), "the key counts no more"
    assert queue.enqueue("ada", "other", dedupe_key="k") == (["ok"] if is_free else [f"duplicate a\n{state}"])
    queue.advance(HOUR)
    queue.tick()
    assert queue.enqueue("ada", "third", dedupe_key="k") == (["duplicate other\nready"] if is_free else ["ok"])
    Keyspace(queue).check()


@pytest.mark.parametrize("batch", ["", "b"])
def test_a_duplicate_of_a_task_of_the_same_call_tells_where_that_is(queue: Queue, batch: str) -> None:
    queue.open_batch("b", max_running=1)
    queue.enqueue("ada", "first", batch=batch)
    assert queue.enqueue("ada", "a", "a", "b", dedupe_key="k", batch=batch) == [
        "ok", *(f"{found}\n{'pending' if batch else 'ready'}" for found in ("duplicate", "duplicate a"))
    ]  # fmt: skip


@pytest.mark.parametrize(("window", "counted"), [({"start_at": 1}, False), ({"delay": 1}, True), ({}, True)])
def test_an_end_after_its_start_counts_from_now_if_the_start_does(
    queue: Queue, window: dict[str, int], counted: bool
) -> None:
    given: dict[str, Any] = {name: value + queue.now * (name == "start_at") for name, value in window.items()}
    queue.enqueue("ada", "a", expires_after_start=50, **given)
    assert Keyspace(queue).headers["a"].end_from == counted * (queue.now // 1000)
