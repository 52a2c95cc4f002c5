"""Opening hours: a closed tenant keeps its tasks, costs nothing, and is served again when it opens."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from .calls import Listener, Queue

TEXT = "mon-fri 12:00-15:00 UTC"


def put(queue: Queue, tenant: str, is_open: bool, in_ms: int = 1000, text: str = TEXT, revision: bytes = b"") -> Any:
    """Set a hours that changes in so many ms."""
    return queue.call("set_opening_hours", tenant, text, int(is_open), queue.now + in_ms, revision)


def revision_of(queue: Queue, tenant: str) -> bytes:
    """Read the revision of opening hours."""
    revision: bytes = queue.call("opening_hours", tenant)[1][1]
    return revision


@pytest.mark.parametrize("whose", ["ada", ""])
def test_a_closed_tenant_keeps_its_tasks_and_gives_none(queue: Queue, whose: str) -> None:
    assert put(queue, whose, is_open=False) == b""
    queue.enqueue("ada", "a", "b")
    assert queue.claim(5) == []
    assert queue.tick().ready == 2
    assert put(queue, whose, is_open=True) == TEXT.encode()
    assert len(queue.claim(5)) == 2


def test_those_who_are_open_go_on(queue: Queue) -> None:
    put(queue, "ada", is_open=False)
    for name in ("ada", "bob", "cyd"):
        queue.enqueue(name, *(f"{name}{n}" for n in range(20)))
    assert len(queue.claim(20)) == 20
    leased = {name: queue.tenant(name).leased for name in ("ada", "bob", "cyd")}
    assert leased["ada"] == 0
    assert min(leased["bob"], leased["cyd"]) >= 8, "and in turn"
    assert (queue.tenant("ada").blocked, queue.queue_state()["weight_sum"]) == (2, 2000)


def test_a_fair_alternation_holds_between_those_that_are_open(queue: Queue) -> None:
    """bob opens and closes: ada has all that bob cannot take, and no debt for it; bob saves nothing up."""
    queue.configure(share=1)
    queue.call("set_weight", "bob", 3000)
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}-{n}" for n in range(400)))

    def serve(count: int) -> dict[str, int]:
        served = {"ada": 0, "bob": 0}
        for _ in range(count):
            (lease,) = queue.claim()
            served[lease.id.split("-")[0]] += 1
            queue.end("ack", lease)
        return served

    for _ in range(3):
        put(queue, "bob", is_open=False)
        assert serve(60) == {"ada": 60, "bob": 0}
        put(queue, "bob", is_open=True)
        assert abs(serve(80)["bob"] - 60) <= 3


def test_a_queue_that_opens_goes_on_with_the_shares_that_it_had(queue: Queue) -> None:
    queue.configure(share=1)
    for name in ("ada", "bob"):
        queue.enqueue(name, *(f"{name}-{n}" for n in range(60)))
    leases = queue.claim(41)
    put(queue, "", is_open=False)
    assert queue.claim(10) == []
    put(queue, "", is_open=True)
    leases += queue.claim(39)
    assert abs(sum(lease.id.startswith("ada") for lease in leases) - 40) <= 3


def test_leases_go_on_when_a_window_closes(queue: Queue) -> None:
    queue.enqueue("ada", "a", "b")
    (lease,) = queue.claim()
    put(queue, "ada", is_open=False)
    assert queue.end("nack", lease, 0) == "ok"
    assert queue.claim() == []
    assert queue.tenant("ada").ready == 2


@pytest.mark.parametrize("whose", ["ada", ""])
def test_opening_tells_the_hungry(queue: Queue, whose: str) -> None:
    put(queue, whose, is_open=False)
    queue.enqueue("ada", "a")
    queue.claim()
    with Listener(queue) as listener:
        put(queue, whose, is_open=True)
        assert listener.heard() == [b"1"]


@pytest.mark.parametrize("first", ["pause", "close"])
@pytest.mark.parametrize("whose", ["ada", ""])
def test_paused_and_closed_are_two_things(queue: Queue, first: str, whose: str) -> None:
    queue.enqueue("ada", "a")
    queue.call("pause", whose)
    put(queue, whose, is_open=False)
    if first == "pause":
        queue.call("resume", whose)
    else:
        put(queue, whose, is_open=True)
    assert queue.claim() == []
    if first == "pause":
        put(queue, whose, is_open=True)
    else:
        queue.call("resume", whose)
    assert len(queue.claim()) == 1


def test_a_tick_tells_of_windows_that_are_to_turn(queue: Queue) -> None:
    put(queue, "ada", is_open=False, in_ms=1000)
    put(queue, "", is_open=True, in_ms=2000)
    assert (queue.tick().opening_changes, queue.tick().next_due) == (0, queue.now + 1000)
    assert queue.call("opening_hours") == [queue.now]
    queue.advance(1000)
    assert queue.tick().opening_changes == 1
    assert [row[0] for row in queue.call("opening_hours")[1:]] == [b"ada"]
    queue.advance(1000)
    assert queue.tick().opening_changes == 2


def test_of_many_servers_that_turn_a_window_one_does(queue: Queue) -> None:
    put(queue, "ada", is_open=False)
    revision = revision_of(queue, "ada")
    assert put(queue, "ada", is_open=True, revision=revision) == TEXT.encode()
    assert put(queue, "ada", is_open=False, revision=revision) is None
    assert struct.unpack_from("<B", revision_of(queue, "ada"))[0] == 1


def test_a_window_is_taken_off_and_the_tenant_served(queue: Queue) -> None:
    put(queue, "ada", is_open=False)
    queue.enqueue("ada", "a")
    revision = revision_of(queue, "ada")
    assert put(queue, "ada", is_open=False, text="") == TEXT.encode()
    assert len(queue.claim()) == 1
    assert queue.call("opening_hours", "ada") == [queue.now]
    assert put(queue, "ada", is_open=False, revision=revision) is None, (
        "a server with an old revision does not close it"
    )
    assert queue.tick().next_due == queue.now + 30_000
