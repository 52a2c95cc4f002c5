"""Schedules: what a fire stores, how many there may be, and which ones servers read."""

from __future__ import annotations

from .calls import START, Queue, refused, unpack
from .calls import packed_template as template

HOUR = 3_600_000
SKIP = 0
TIMING = b"any bytes \x00 will do"


def schedule(
    queue: Queue, name: str = "nightly", after: int = HOUR, misfire: int = SKIP, tenant: str = "ada",
    timing: bytes = TIMING, task: bytes = b"",
) -> tuple[str, int]:  # fmt: skip
    """Create or change a schedule that fires `after` ms from now."""
    outcome, next_at = queue.call("schedule", tenant, name, queue.now + after, misfire, timing, task or template())
    return outcome.decode(), next_at


def revision_of(queue: Queue, name: str = "nightly", tenant: str = "ada") -> bytes:
    """Read a schedule's revision."""
    revision: bytes = queue.call("schedules", tenant, name, 0, 1)[1][1]
    return revision


def pause(queue: Queue, name: str = "nightly", tenant: str = "ada") -> None:
    assert queue.call("pause_schedule", tenant, name, revision_of(queue, name, tenant), "") == b"ok"


def test_schedules_are_listed_by_tenant_and_all_by_their_next_fire(queue: Queue) -> None:
    schedule(queue, "c", 300)
    schedule(queue, "a", 200, tenant="bob")
    schedule(queue, "b", 100)
    pause(queue, "b")

    def fields(tenant: str, offset: int = 0, count: int = 100) -> list[str]:
        return [row[0].decode() for row in queue.call("schedules", tenant, "", offset, count)[1:]]

    assert fields("") == ["bob/a", "ada/c", "ada/b"]
    assert (fields("", 1, 1), fields("", 9)) == (["ada/c"], [])
    assert sorted(fields("ada")) == ["ada/b", "ada/c"]
    assert fields("nobody") == []
    (row,) = queue.call("schedules", "bob", "a", 0, 1)[1:]
    assert (row[0], row[2]) == (b"bob/a", template())


def test_a_time_fires_once_though_the_schedule_is_made_anew(queue: Queue) -> None:
    for outcome in (b"ok", b"duplicate"):
        schedule(queue, after=0)
        assert queue.call("fire", "ada/nightly", revision_of(queue), queue.now + HOUR) == [outcome]
        queue.call("unschedule", "ada", "nightly")
    assert queue.queue_state()["enqueued"] == 1


def test_a_tenant_has_a_thousand_schedules_and_no_more(queue: Queue) -> None:
    for n in range(1000):
        schedule(queue, f"s{n}")
    refused(queue, "too_large name", "schedule", "ada", "more", START, SKIP, TIMING, template())
    assert schedule(queue, "s0", timing=b"other")[0] == "changed"
    assert schedule(queue, tenant="bob")[0] == "created"
    queue.call("unschedule", "ada", "s7")
    assert schedule(queue, "more")[0] == "created"


def test_schedules_that_are_due_are_listed_in_order_a_part_of_each_tenant_and_none_of_some(queue: Queue) -> None:
    for n in range(40):
        schedule(queue, f"s{n:02}", 10 + n)
    schedule(queue, "b", 100, tenant="bob")
    schedule(queue, "c", 101, tenant="cid")
    schedule(queue, "later", 300, tenant="cid")
    schedule(queue, "paused", 10, tenant="bob")
    pause(queue, "paused", "bob")

    def due(count: int, *passed: str) -> list[str]:
        now, next_at, *rows = queue.call("due_schedules", count, *passed)
        assert (now, next_at) == (queue.now, START + 300 if queue.now < START + 300 else -1)
        assert all(unpack("SCHEDULE", revision).next_at <= now for _, revision in rows)
        return [field.decode() for field, _ in rows]

    queue.advance(200)
    first = [f"ada/s{n:02}" for n in range(25)]
    assert due(100) == [*first, "bob/b", "cid/c"]
    assert due(7) == first[:7]
    assert due(100, "ada", "cid") == ["bob/b"]
    queue.advance(200)
    assert due(100, "ada") == ["bob/b", "cid/c", "cid/later"]


def test_a_tenant_that_is_passed_over_hides_no_other(queue: Queue) -> None:
    queue.client.zadd(queue.key("fires"), {f"ada/s{n}": START for n in range(1500)})
    schedule(queue, "b", 100, tenant="bob")
    queue.advance(100)
    assert [row[0] for row in queue.call("due_schedules", 100, "ada")[2:]] == [b"bob/b"]
    queue.client.delete(queue.key("fires"))


def declare(queue: Queue, name: str = "nightly", app: str = "jobs", task: bytes = b"", timing: bytes = TIMING) -> str:
    """Declare a schedule, as a worker of an app does."""
    rest = (queue.now + HOUR, SKIP, timing, task or template(), app)
    return str(queue.call("schedule", "ada", name, *rest)[0].decode())


def test_what_an_app_declares_changes_when_no_worker_declares_it_as_it_was(queue: Queue) -> None:
    new = template(priority=7)
    assert [declare(queue), declare(queue), declare(queue, task=new)] == ["created", "same", "kept"]
    queue.advance(14_000)
    assert declare(queue) == "same", "a worker of the old version lives"
    queue.advance(14_000)
    assert declare(queue, task=new) == "kept"
    assert queue.call("unschedule", "ada", "nightly", "jobs") == b"kept"
    queue.advance(1_000)
    assert [declare(queue, task=new), declare(queue)] == ["changed", "kept"]
    assert queue.call("declared", "jobs") == [b"ada/nightly"]
    queue.advance(15_000)
    assert queue.call("unschedule", "ada", "nightly", "other") == b"gone"
    assert queue.call("unschedule", "ada", "nightly", "jobs") == b"ok"
    assert queue.call("unschedule", "ada", "nightly", "jobs") == b"gone"
    assert queue.call("declared", "jobs") == []


def test_what_was_made_by_hand_or_by_another_app_is_not_an_apps_to_change(queue: Queue) -> None:
    schedule(queue, "own")
    declare(queue, "theirs", app="billing")
    for name in ("own", "theirs"):
        assert declare(queue, name, timing=b"another") == "other"
        queue.advance(20_000)
        assert declare(queue, name) == "other"
        assert queue.call("unschedule", "ada", name, "jobs") == b"gone"
    assert declare(queue, "mine") == "created"
    assert schedule(queue, "mine")[0] == "changed", "it is the caller's now"
    assert [declare(queue, "mine"), queue.call("declared", "jobs")] == ["other", []]
    pause(queue, "theirs")
    assert declare(queue, "theirs", app="billing") == "same"
    assert unpack("SCHEDULE", revision_of(queue, "theirs")).paused == 1
