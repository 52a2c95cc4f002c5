"""Schedules: who fires, fires once; what is late is skipped or made up for once; times are the callers' to compute."""

from __future__ import annotations

import pytest

from .calls import LEASE_MS, START, Queue, refused, snapshot, unpack, words, writes
from .calls import packed_template as template

HOUR, LATE_MS = 3_600_000, 60_000
SKIP, ONCE = 0, 1
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


def next_of(queue: Queue, name: str = "nightly") -> int:
    """Read when a schedule fires next."""
    return int(unpack("SCHEDULE", revision_of(queue, name)).next_at)


def last_of(queue: Queue, name: str = "nightly") -> int:
    """Read which fire a schedule's last task was for."""
    return int(unpack("SCHEDULE", revision_of(queue, name)).last_fired_at)


def pause(queue: Queue, name: str = "nightly", tenant: str = "ada") -> None:
    """Pause a schedule."""
    assert queue.call("pause_schedule", tenant, name, revision_of(queue, name, tenant), "") == b"ok"


def fire(queue: Queue, name: str = "nightly", revision: bytes | None = None, after: int = HOUR) -> str:
    """Fire one schedule; its next time is `after` ms from now."""
    revision = revision_of(queue, name) if revision is None else revision
    return words(queue.call("fire", f"ada/{name}", revision, queue.now + after))[0]


def test_a_fire_enqueues_the_task_with_the_time_of_the_fire(queue: Queue) -> None:
    assert schedule(queue, task=template(b"hello", expires_in=9000, max_attempts=7)) == ("created", START + HOUR)
    queue.advance(HOUR + 5)
    assert fire(queue) == "ok"
    (lease,) = queue.claim(5)
    assert (lease.id, lease.max_attempts) == (f"ada/nightly-{START + HOUR}", 7)
    header = unpack("HEADER", lease.record)
    assert (header.max_attempts, header.enqueued_at) == (7, queue.now)
    assert (header.start_at, header.expires_at) == (START + HOUR, queue.now + 9000)
    assert lease.record.endswith(b"ada\0hello")
    assert next_of(queue) == START + 2 * HOUR + 5
    assert queue.queue_state()["enqueued"] == queue.tenant("ada").leased == 1


def test_the_end_of_a_fires_task_may_count_from_the_time_of_the_fire(queue: Queue) -> None:
    schedule(queue, misfire=1, task=template(b"1", after_start=9000))
    queue.advance(HOUR + 5)
    assert fire(queue) == "ok"
    header = unpack("HEADER", queue.claim(5)[0].record)
    assert (header.start_at, header.expires_at) == (START + HOUR, START + HOUR + 9000)
    fires_at = next_of(queue)
    queue.advance(HOUR + 9000)
    assert fire(queue) == "expired", "it is made up for when its window is over"
    assert (queue.queue_state()["ready"], last_of(queue)) == (0, START + HOUR)
    assert next_of(queue) > fires_at


def test_a_fires_task_may_ask_for_what_any_task_may(queue: Queue) -> None:
    schedule(queue, task=template(b'"urgent"', priority=0, result=5000))
    queue.enqueue("ada", "usual")
    queue.advance(HOUR)
    assert fire(queue) == "ok"
    first, _ = queue.claim(2)
    assert first.id == f"ada/nightly-{START + HOUR}"
    assert queue.settle(("ack_with_result", first.id, first.attempt, "", "42")) == ["ok"]
    assert queue.call("results", first.id) == [b"42"]


def test_while_the_task_of_a_fire_holds_their_key_the_next_fires_make_none(queue: Queue) -> None:
    schedule(queue, task=template(key="nightly"))
    queue.advance(HOUR)
    assert fire(queue) == "ok"
    (lease,) = queue.claim()
    assert lease.id == f"ada/nightly-{START + HOUR}"
    queue.advance(HOUR)
    assert fire(queue) == f"duplicate {lease.id}"
    assert next_of(queue) == START + 3 * HOUR
    assert last_of(queue) == START + HOUR
    queue.tick()
    queue.advance(1001)
    queue.tick()
    assert queue.end("ack", queue.claim()[0]) == "ok"
    queue.advance(HOUR)
    assert fire(queue) == "ok"


def test_a_key_held_for_a_window_lets_one_fire_through_in_it(queue: Queue) -> None:
    schedule(queue, task=template(key="nightly", period=2 * HOUR))
    outcomes = []
    for _ in range(4):
        queue.advance(HOUR)
        outcomes.append(fire(queue).partition(" ")[0])
        for lease in queue.claim():
            queue.end("ack", lease)
    assert outcomes == ["ok", "duplicate", "ok", "duplicate"]


def test_two_schedules_of_one_key_fire_one_task_in_a_call(queue: Queue) -> None:
    for name in ("a", "b"):
        schedule(queue, name, task=template(key="k"))
    queue.advance(HOUR)
    fires = [part for name in "ab" for part in (f"ada/{name}", revision_of(queue, name), queue.now + HOUR)]
    assert words(queue.call("fire", *fires)) == ["ok", f"duplicate ada/a-{START + HOUR}"]


def test_of_many_that_fire_one_does(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    revision = revision_of(queue)
    assert [fire(queue, revision=revision, after=HOUR + n) for n in range(3)] == ["ok", "gone", "gone"]
    assert next_of(queue) == START + 2 * HOUR
    assert len(queue.claim(5)) == 1


def test_a_twin_in_one_call_fires_once(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    one = ("ada/nightly", revision_of(queue), queue.now + HOUR)
    assert words(queue.call("fire", *one, *one)) == ["ok", "gone"]
    assert queue.queue_state()["ready"] == 1


def test_a_fire_that_has_lost_the_race_writes_nothing(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    revision = revision_of(queue)
    fire(queue, revision=revision)
    before = writes(queue)
    assert fire(queue, revision=revision) == "gone"
    assert writes(queue) == before


def test_nobody_fires_too_early_or_back_into_the_past(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR - 1)
    assert fire(queue) == "gone"
    queue.advance(1)
    assert fire(queue, after=0) == "gone"
    assert fire(queue, after=1) == "ok"


@pytest.mark.parametrize(
    ("late", "outcome"), [(0, "ok"), (LATE_MS, "ok"), (LATE_MS + 1, "misfire"), (9 * HOUR, "misfire")]
)
def test_skip_fires_nothing_that_was_missed(queue: Queue, late: int, outcome: str) -> None:
    schedule(queue, misfire=SKIP)
    queue.advance(HOUR + late)
    assert fire(queue) == outcome
    assert queue.queue_state()["ready"] == (outcome == "ok")
    assert next_of(queue) == queue.now + HOUR
    queue.advance(HOUR)
    assert fire(queue) == "ok"


def test_once_fires_one_task_for_all_that_were_missed(queue: Queue) -> None:
    schedule(queue, misfire=ONCE)
    queue.advance(100 * HOUR)
    assert fire(queue) == "ok"
    assert fire(queue) == "gone"
    assert queue.claim(5)[0].id == f"ada/nightly-{START + HOUR}"


def test_the_same_again_changes_nothing(queue: Queue) -> None:
    schedule(queue)
    before = snapshot(queue)
    queue.advance(1000)
    assert schedule(queue) == ("same", START + HOUR)
    assert snapshot(queue) == before


def test_another_task_keeps_the_time_and_another_timing_takes_the_new_one(queue: Queue) -> None:
    schedule(queue)
    queue.advance(1000)
    assert schedule(queue, task=template(b"new")) == ("changed", START + HOUR)
    assert schedule(queue, task=template(b"new"), misfire=ONCE) == ("changed", START + HOUR)
    assert schedule(queue, task=template(b"new"), timing=b"other") == ("changed", queue.now + HOUR)
    queue.advance(HOUR)
    fire(queue)
    assert queue.claim()[0].record.endswith(b"new")


def test_a_schedule_that_was_replaced_is_not_fired_by_its_old_head(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    revision = revision_of(queue)
    schedule(queue, timing=b"other")
    assert fire(queue, revision=revision) == "gone"


def test_a_schedule_made_anew_does_not_fire_the_same_time_again(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    fire(queue)
    queue.end("ack", queue.claim()[0])
    queue.call("unschedule", "ada", "nightly")
    schedule(queue, after=0)
    assert fire(queue) == "duplicate"
    assert queue.queue_state()["ready"] == 0


def test_pause_and_resume_are_of_one_revision_and_make_up_for_nothing(queue: Queue) -> None:
    schedule(queue, misfire=ONCE)
    old = revision_of(queue)
    pause(queue)
    queue.advance(10 * HOUR)
    assert queue.tick()[1::6] == (-1, 0)
    assert fire(queue) == "gone"
    revision = revision_of(queue)
    resume = ("pause_schedule", "ada", "nightly")
    assert queue.call(*resume, old, queue.now + 5) == b"stale"
    assert queue.call("pause_schedule", "ada", "none", old, "") == b"stale"
    assert queue.call(*resume, revision, queue.now + 5) == b"ok"
    assert queue.call(*resume, revision, queue.now + 9) == b"stale"
    assert next_of(queue) == queue.now + 5
    queue.advance(5)
    assert (queue.tick().fires, fire(queue)) == (1, "ok")


def test_a_paused_schedule_that_is_changed_stays_paused(queue: Queue) -> None:
    schedule(queue)
    pause(queue)
    schedule(queue, timing=b"other")
    assert unpack("SCHEDULE", revision_of(queue)).paused == 1
    assert queue.tick().next_due == -1


def test_unschedule_forgets_the_schedule_and_leaves_its_tasks(queue: Queue) -> None:
    schedule(queue)
    queue.advance(HOUR)
    revision = revision_of(queue)
    fire(queue)
    assert [queue.call("unschedule", "ada", "nightly") for _ in range(2)] == [b"ok", b"gone"]
    assert queue.call("schedules", "ada", "nightly", 0, 1) == [queue.now]
    assert fire(queue, revision=revision) == "gone"
    assert queue.queue_state()["ready"] == 1
    assert not any(queue.client.exists(queue.key(name)) for name in ("fires", "templates", "schedules:ada"))


def test_a_tick_tells_when_the_next_schedule_fires_and_how_many_are_due(queue: Queue) -> None:
    schedule(queue, "a", 700)
    schedule(queue, "b", 500)
    queue.enqueue("bob", "x", delay=900)
    assert queue.tick()[1::6] == (START + 500, 0)
    queue.advance(700)
    assert queue.tick()[1::6] == (queue.now, 2)
    fire(queue, "a")
    fire(queue, "b")
    assert queue.tick()[1::6] == (START + 900, 0)


def test_a_paused_queue_still_fires_and_a_paused_tenants_task_waits(queue: Queue) -> None:
    schedule(queue)
    queue.call("pause", "")
    queue.call("pause", "ada")
    queue.advance(HOUR)
    assert fire(queue) == "ok"
    assert queue.claim() == []
    queue.call("resume", "")
    queue.call("resume", "ada")
    assert len(queue.claim()) == 1


def test_tenants_names_do_not_meet_and_each_pays_for_its_own(queue: Queue) -> None:
    for tenant in ("ada", "bob"):
        schedule(queue, tenant=tenant)
    queue.advance(HOUR)
    fires = [part for t in ("ada", "bob") for part in (f"{t}/nightly", revision_of(queue, tenant=t), queue.now + HOUR)]
    assert words(queue.call("fire", *fires)) == ["ok", "ok"]
    assert {name: share.ready for name, share in queue.tenants().items()} == {"ada": 1, "bob": 1}


def test_a_fire_wakes_a_hungry_queue(queue: Queue) -> None:
    schedule(queue)
    assert queue.claim() == []
    assert queue.queue_state()["hungry"] == 1
    queue.advance(HOUR)
    fire(queue)
    assert queue.queue_state()["hungry"] == 0


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


def test_a_tenant_has_a_thousand_schedules_and_no_more(queue: Queue) -> None:
    for n in range(1000):
        schedule(queue, f"s{n}")
    refused(queue, "too_large name", "schedule", "ada", "more", START, SKIP, TIMING, template())
    assert schedule(queue, "s0", timing=b"other")[0] == "changed"
    assert schedule(queue, tenant="bob")[0] == "created"
    queue.call("unschedule", "ada", "s7")
    assert schedule(queue, "more")[0] == "created"


def test_a_hundred_fire_in_one_call_and_no_more(queue: Queue) -> None:
    for n in range(101):
        schedule(queue, f"s{n}")
    queue.advance(HOUR)
    fires = [part for n in range(101) for part in (f"ada/s{n}", revision_of(queue, f"s{n}"), queue.now + HOUR)]
    refused(queue, "bad_request fires", "fire", *fires)
    assert words(queue.call("fire", *fires[:300])) == ["ok"] * 100
    assert queue.tick().fires == 1


def test_fires_count_into_the_fair_share_like_any_task(queue: Queue) -> None:
    queue.configure(share=1)
    schedule(queue)
    queue.advance(HOUR)
    fire(queue)
    lease = queue.claim()[0]
    queue.advance(LEASE_MS - 1)
    assert queue.end("ack", lease) == "ok"
    assert (queue.tenant("ada").done, queue.tenant("ada").delivered) == (1, 1)


def test_schedules_that_are_due_are_told_in_order_a_part_of_each_tenant_and_none_of_some(queue: Queue) -> None:
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
