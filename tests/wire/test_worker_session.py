"""A worker's end alone: attaching, leases and their renewal, settlements, credit, draining."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairq.errors import BadFrame
from fairq.model.checks import MAX_ERROR_CHARS, MAX_TRACEBACK_BYTES
from fairq.model.rules import MAX_LEASE
from fairq.model.tasks import Link, NewTask, Settlement
from fairq.wire.calls import Call
from fairq.wire.client_session import LATE_S
from fairq.wire.frames import HeldLease, Report
from fairq.wire.strict_json import MAX_COST, check_cost
from fairq.wire.worker_session import WorkerSession
from tests.store.cases import case

from .ends import End, ids, kind_of

LEASE_S = 30.0


class WorkerEnd(End):
    """A worker's session, and the server played by hand."""

    session: WorkerSession

    def __init__(self, credit: int = 10, queues: tuple[str, ...] = ("q",)) -> None:
        super().__init__(WorkerSession(worker="worker-1", queues=queues, credit=credit))

    def attach(self, **welcome: Any) -> WorkerEnd:
        """Connect, and have the attach answered with `ok` for every lease."""
        self.connect(**welcome)
        frame = self.sent()[0]
        self.reply(frame, leases=["ok"] * len(frame["leases"]))
        return self

    def push(
        self,
        *ids: str,
        lease: int = 1,
        attempt: int = 1,
        lease_s: float = LEASE_S,
        queue: str = "q",
        **more: Any,
    ) -> Any:
        tasks = [
            {"id": id, "lease": lease, "attempt": attempt, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1,
             "payload": None}
            for id in ids
        ]  # fmt: skip
        return self.hear({"type": "push", "queue": queue, "lease_ms": round(lease_s * 1000), "tasks": tasks, **more})

    def ack(self, *ids: str, lease: int = 1, queue: str = "q") -> bool:
        """Settle leases; tells whether all were held."""
        return all([self.session.settle(queue, Settlement("ack", id, lease)) for id in ids])

    def frames(self, kind: str) -> list[dict[str, Any]]:
        """Return the frames of a kind that leave now."""
        return [frame for frame in self.sent() if kind_of(frame) == kind]


@pytest.fixture
def end() -> WorkerEnd:
    return WorkerEnd().attach()


def test_a_worker_attaches_first_of_all_and_waits_for_the_answer() -> None:
    end = WorkerEnd(credit=7, queues=("a", "b"))
    end.connect()
    end.session.request("credit", {"credit": 1}, end.now + 9)
    frame = end.only()
    del frame["ref"]
    assert frame == {"type": "attach", "worker": "worker-1", "queues": ["a", "b"], "credit": 7, "leases": []}
    assert end.sent() == []
    assert not end.session.is_attached


def test_a_push_is_handed_to_the_driver_and_held(end: WorkerEnd) -> None:
    push = end.push("a", "b")
    assert [task.id for task in push.tasks] == ["a", "b"]
    assert end.session.holding == 2
    assert end.session.holds("q", "a", 1)
    assert not end.session.holds("q", "a", 2)
    assert not end.session.holds("other", "a", 1)


def test_settlements_share_frames_of_one_queue_each_and_come_before_renewals() -> None:
    end = WorkerEnd(queues=("p", "q")).attach()
    end.push("a", "b", "c")
    end.push("d", queue="p")
    assert end.ack("a", "c")
    assert end.ack("d", queue="p")
    assert [(frame["queue"], ids(frame)) for frame in end.sent()] == [("q", ["a", "c"]), ("p", ["d"])]


def test_a_settlement_says_what_became_of_the_task(end: WorkerEnd) -> None:
    end.push("a", "b", "c")
    end.session.settle("q", Settlement("nack", "a", 1, 0, "oh\ud800"))
    end.session.settle("q", Settlement("reject", "b", 1, None, "no"))
    end.session.settle("q", Settlement("release", "c", 1))
    assert end.only()["settlements"] == [
        {"action": "nack", "id": "a", "lease": 1, "delay_ms": 0, "error": "oh?"},
        {"action": "reject", "id": "b", "lease": 1, "error": "no"},
        {"action": "release", "id": "c", "lease": 1},
    ]


def test_settles_of_a_prefetching_worker_wait_for_few_answers() -> None:
    end = WorkerEnd()
    end.session.most_begun = 1
    end.attach()
    end.push(*"abcdefghijklmnopqr")
    for n, id in enumerate("abcdefghijklmnopqr"):
        end.ack(id)
        assert end.session.unsent == (n < 16)
        assert [ids(frame) for frame in end.sent()] == ([[id]] if n < 16 else [])
    assert end.session.holding == 18


def test_two_settles_are_under_way_at_most_and_the_rest_gathers(end: WorkerEnd) -> None:
    end.push(*"abcde")
    frames = []
    for id in "abcde":
        end.ack(id)
        frames += end.sent()
    assert [ids(frame) for frame in frames] == [["a"], ["b"]]
    assert end.session.holding == 5
    end.stored(frames[0])
    assert end.session.holding == 4
    assert ids(end.only()) == ["c", "d", "e"]


def test_partitions_whose_settlements_have_no_answer_hold_up_no_others(end: WorkerEnd) -> None:
    """Nor their own later ones: the server is to know that these tasks take no slot any more."""
    late = []
    for partition, names in (("4.0", "abc"), ("4.1", "def"), ("4.2", "ghi")):
        end.push(*names, "x" + partition, partition=partition)
        end.ack(*names)
        late += [ids(frame) for frame in end.sent()]
    assert late == [["a", "b", "c"], ["d", "e", "f"]], "the window is full"
    end.pass_time(LATE_S)
    frame = end.only()
    assert ids(frame) == ["g", "h", "i"]
    end.stored(frame)
    end.ack("x4.0", "x4.2")
    assert [ids(frame) for frame in end.sent()] == [["x4.0"], ["x4.2"]]
    assert end.session.holding == 9


def test_settlements_of_partitions_take_turns(end: WorkerEnd) -> None:
    """Two that always have another one leave the window to a third: its leases would end, and its tasks run again."""
    busy = {f"4.{n}": [f"{n}-{task}" for task in range(5)] for n in range(2)}
    for partition, names in busy.items():
        end.push(*names, partition=partition)
    end.push("rare", partition="4.2")
    for names in busy.values():
        end.ack(names.pop())
    under_way = end.sent()
    end.ack("rare")
    for names in busy.values():
        end.ack(names.pop())
    sent: list[list[str]] = []
    while ["rare"] not in sent:
        end.stored(under_way.pop(0))
        under_way += (frames := end.sent())
        sent += map(ids, frames)
        end.ack(busy["4.0" if sent[-1][0].startswith("0") else "4.1"].pop())
    assert len(sent) <= 3


@pytest.mark.parametrize(
    ("said", "limits", "count"),
    [
        ({}, {"max_batch": 3, "max_message_bytes": 65_536}, 3),
        ({"error": "\0" * MAX_ERROR_CHARS}, {"max_batch": 3, "max_message_bytes": 65_536}, 3),
        ({"traceback": "\0" * MAX_TRACEBACK_BYTES}, {"max_message_bytes": 200_000}, 4),
    ],
    ids=["plain", "errors", "tracebacks"],
)
def test_settles_keep_to_the_servers_limits(said: dict[str, str], limits: dict[str, int], count: int) -> None:
    end = WorkerEnd().attach(**limits)
    end.push(*"abcdefgh")
    for id in "abcdefgh":
        end.session.settle("q", Settlement("reject", id, 1, **said))  # type: ignore[arg-type]
    texts = [str(message) for message in end.session.outgoing(end.now)]
    assert [text.count('"action"') for text in texts] == [count, count]
    assert all(len(text) < limits["max_message_bytes"] for text in texts)


def test_a_traceback_travels_with_its_failure(end: WorkerEnd) -> None:
    end.push("a")
    end.session.settle("q", Settlement("nack", "a", 1, None, "no", traceback="frames\ud800"))
    assert end.only()["settlements"] == [
        {"action": "nack", "id": "a", "lease": 1, "error": "no", "traceback": "frames?"}
    ]


def test_a_traceback_for_which_a_message_has_no_room_is_left_out() -> None:
    end = WorkerEnd().attach(max_message_bytes=16_384)
    end.push("a")
    end.session.settle("q", Settlement("nack", "a", 1, 5, "no", traceback="\0" * MAX_TRACEBACK_BYTES))
    assert end.only()["settlements"] == [{"action": "nack", "id": "a", "lease": 1, "delay_ms": 5, "error": "no"}]


def test_an_answer_that_does_not_fit_settles_nothing(end: WorkerEnd) -> None:
    end.push("a", "b")
    end.ack("a", "b")
    with pytest.raises(BadFrame):
        end.reply(end.only(), outcomes=["ok"])
    end.disconnect()
    end.attach()
    assert ids(end.only()) == ["a", "b"]


def test_a_lease_is_settled_once_and_only_by_its_own_number(end: WorkerEnd) -> None:
    end.push("a", lease=2)
    assert not end.ack("a", lease=1)
    assert not end.ack("b", lease=2)
    assert end.ack("a", lease=2)
    assert not end.ack("a", lease=2)
    assert len(end.only()["settlements"]) == 1


def test_leases_are_renewed_at_a_third(end: WorkerEnd) -> None:
    end.push("a", "b")
    end.pass_time(LEASE_S / 3 - 0.1)
    assert end.frames("extend") == []
    end.pass_time(0.1)
    frame = end.frames("extend")[0]
    renewals = [{"action": "extend", "id": id, "lease": 1} for id in "ab"]
    assert (frame["queue"], frame["settlements"]) == ("q", renewals)
    end.stored(frame)
    end.pass_time(LEASE_S / 3 - 0.1)
    assert end.frames("extend") == []
    end.pass_time(0.1)
    assert len(end.frames("extend")) == 1
    assert end.session.lost == []


def test_a_short_lease_behind_a_long_one_is_renewed_in_time(end: WorkerEnd) -> None:
    end.push("long", lease_s=3600)
    end.push("short", lease_s=3)
    end.pass_time(1)
    assert [ids(frame) for frame in end.frames("extend")] == [["short"]]


def test_many_leases_are_renewed_in_batches() -> None:
    end = WorkerEnd(credit=5).attach(max_batch=2)
    end.push(*"abcde")
    end.pass_time(LEASE_S / 3)
    assert [ids(frame) for frame in end.frames("extend")] == [["a", "b"], ["c", "d"], ["e"]]
    assert end.session.deadline() > end.now


def test_a_renewal_without_an_answer_is_tried_again_until_the_lease_is_over(end: WorkerEnd) -> None:
    end.push("a")
    tries = 0
    while not end.session.lost:
        end.pass_time(0.5)
        end.hear({"type": "ping"})
        tries += len(end.frames("extend"))
    assert end.now == 100.0 + LEASE_S
    assert 15 <= tries <= 25
    assert end.session.lost == [HeldLease("q", "a", 1)]
    assert not end.ack("a")


def test_a_late_renewal_counts_from_its_sending(end: WorkerEnd) -> None:
    end.push("a", lease_s=9)
    end.pass_time(3)
    frame = end.frames("extend")[0]
    end.pass_time(2)
    end.sent()
    end.stored(frame)
    assert end.now == 105
    end.pass_time(0.9)
    assert end.frames("extend") == []
    end.pass_time(0.1)
    assert len(end.frames("extend")) == 1


@pytest.mark.parametrize("outcome", ["stale", "gone"])
def test_a_lease_that_is_not_renewed_is_lost(end: WorkerEnd, outcome: str) -> None:
    end.push("a", "b")
    end.pass_time(LEASE_S / 3)
    end.reply(end.frames("extend")[0], outcomes=["ok", outcome])
    assert end.session.lost == [HeldLease("q", "b", 1)]
    assert end.session.holding == 1


def test_leases_outlive_the_connection_and_are_brought_along(end: WorkerEnd) -> None:
    end.push("a", "b", "c", "d")
    end.ack("d")
    end.disconnect()
    end.now += 5
    end.connect()
    frame = end.only()
    assert frame["leases"] == [{"queue": "q", "id": id, "lease": 1} for id in "abcd"]
    end.ack("c")  # while the answer is under way
    end.reply(frame, leases=["ok", "stale", "ok", "gone"])
    assert end.session.lost == [HeldLease("q", "b", 1)]
    assert [ids(frame) for frame in end.sent()] == [["d", "c"]]
    end.pass_time(LEASE_S / 3)
    assert [ids(frame) for frame in end.frames("extend")] == [["a"]]


def test_leases_run_out_while_there_is_no_connection(end: WorkerEnd) -> None:
    end.push("a")
    end.pass_time(LEASE_S / 3)
    end.disconnect()
    assert end.session.deadline() <= 100.0 + LEASE_S
    end.pass_time(LEASE_S)
    assert end.session.lost == [HeldLease("q", "a", 1)]
    assert not end.session.holds("q", "a", 1)


def test_what_is_to_be_released_is_brought_along_so_that_no_old_connection_takes_an_attempt(end: WorkerEnd) -> None:
    end.push("a", "b")
    end.disconnect()
    end.session.settle("q", Settlement("release", "b", 1))
    end.connect()
    frame = end.only()
    assert frame["leases"] == [{"queue": "q", "id": id, "lease": 1} for id in "ab"]
    end.reply(frame, leases=["ok", "cancelled"])
    assert [ids(frame) for frame in end.frames("settle")] == [["b"]]


def test_a_worker_tells_how_many_tasks_it_holds_in_advance() -> None:
    for credit, most_begun, found in [(3, 0, None), (3, 3, None), (3, 1, 2), (1, 2, None)]:
        with case(credit, most_begun, found):
            end = WorkerEnd(credit=credit)
            end.session.most_begun = most_begun
            end.connect()
            assert end.only().get("prefetch") == found


def test_what_is_held_is_brought_along_before_what_has_ended() -> None:
    end = WorkerEnd(credit=3).attach(max_batch=3)
    end.push(*"abc")
    end.ack(*"abc")
    end.sent()
    end.push(*"def")  # the answer to the ends of the first three is lost
    end.disconnect()
    end.connect(max_batch=3)
    frame = end.only()
    assert [lease["id"] for lease in frame["leases"]] == list("def")
    end.reply(frame, leases=["ok"] * 3)
    assert [ids(frame) for frame in end.frames("settle")] == [list("abc")]


def test_leases_beyond_one_attach_are_renewed_right_after_it() -> None:
    end = WorkerEnd(credit=5).attach(max_batch=3)
    end.push(*"abcde")
    end.pass_time(LEASE_S / 2)
    end.disconnect()
    end.attach(max_batch=3)
    end.pass_time(1)
    assert [ids(frame) for frame in end.frames("extend")] == [["d", "e"]]


def test_another_task_of_the_same_id_is_not_settled_or_renewed_by_the_lease_of_the_first(end: WorkerEnd) -> None:
    """The id was used again: both are in their first attempt."""
    end.push("a", lease=70)
    end.pass_time(LEASE_S / 3)
    renewal = end.only()
    end.push("a", lease=90)
    assert end.session.lost == [HeldLease("q", "a", 70)]
    end.reply(renewal, outcomes=["stale"])
    end.session.report("q", Report("a", 70, 0.5))
    assert not end.ack("a", lease=70)
    assert end.session.holds("q", "a", 90)
    assert end.sent() == []
    assert end.ack("a", lease=90)
    assert end.only()["settlements"] == [{"action": "ack", "id": "a", "lease": 90}]


def test_an_attach_refused_for_now_is_sent_again() -> None:
    end = WorkerEnd()
    end.connect()
    end.refuse(end.only(), "draining")
    assert end.sent() == []
    end.pass_time(1)
    assert end.only()["type"] == "attach"


def test_a_settlement_that_cannot_be_written_keeps_no_other_from_leaving(end: WorkerEnd) -> None:
    dropped: list[tuple[str, str, str, int]] = []
    end.session.dropped = lambda queue, what, error: dropped.append((queue, what.id, error.code, end.session.unsettled))
    end.push("a", "b")
    end.session.settle("q", Settlement("nack", "a", 1, object()))  # type: ignore[arg-type]
    end.ack("b")
    assert [ids(frame) for frame in end.frames("settle")] == [["b"]]
    assert dropped == [("q", "a", "bad_request", 1)]
    assert end.session.unsettled == 1


def test_what_is_refused_for_good_ends_the_worker() -> None:
    for verb in ["attach", "settle", "credit"]:
        with case(verb):
            end = WorkerEnd()
            end.connect()
            frame = end.only()
            if verb != "attach":
                end.reply(frame, leases=[])
                end.push("a")
                if verb == "credit":
                    end.session.credit = 5
                else:
                    end.ack("a")
                frame = end.only()
            assert frame["type"] == verb
            end.refuse(frame, "forbidden")
            assert end.session.fatal is not None
            assert end.session.fatal.code == "forbidden"


def test_a_refused_renewal_ends_nothing(end: WorkerEnd) -> None:
    end.push("a")
    end.pass_time(LEASE_S / 3)
    end.refuse(end.frames("extend")[0], "unavailable")
    assert end.session.fatal is None
    assert end.session.holding == 1


def test_changes_of_credit_are_reported_one_at_a_time(end: WorkerEnd) -> None:
    end.session.credit = 3
    frame = end.only()
    assert (frame["type"], frame["credit"]) == ("credit", 3)
    end.session.credit = 4
    end.session.credit = 5
    assert end.sent() == []
    end.reply(frame)
    frame = end.only()
    assert frame["credit"] == 5
    end.refuse(frame, "unavailable")
    end.pass_time(1)
    assert end.only()["credit"] == 5


def test_a_worker_that_stops_asks_for_no_more_and_settles_the_rest(end: WorkerEnd) -> None:
    end.push("a")
    end.session.credit = 0
    frame = end.only()
    assert (frame["type"], frame["credit"]) == ("credit", 0)
    assert not end.session.is_quiet  # a push may still be under way
    end.reply(frame)
    assert end.session.is_quiet
    end.ack("a")
    end.stored(end.only())
    assert end.session.holding == 0


def test_a_worker_that_stops_while_it_attaches_says_so_after_the_answer() -> None:
    end = WorkerEnd()
    end.connect()
    frame = end.only()
    end.session.credit = 0
    assert end.sent() == []
    end.reply(frame, leases=[])
    frame = end.only()
    assert (frame["type"], frame["credit"]) == ("credit", 0)


def test_a_worker_that_has_stopped_asks_for_nothing_on_its_next_connection(end: WorkerEnd) -> None:
    end.push("a")
    end.session.credit = 0
    end.disconnect()
    end.connect()
    assert end.only()["credit"] == 0
    assert end.sent() == []


def test_a_draining_server_still_gets_settlements_and_renewals(end: WorkerEnd) -> None:
    end.push("a", "b")
    end.hear({"type": "drain"})
    end.ack("a")
    assert ids(end.only()) == ["a"]
    end.pass_time(LEASE_S / 3)
    assert [ids(frame) for frame in end.frames("extend")] == [["b"]]


def test_a_lease_that_could_not_be_renewed_is_taken_off_the_servers_account(end: WorkerEnd) -> None:
    end.push("a")
    for _ in range(400):
        end.pass_time(0.1)
        for frame in end.sent():
            if kind_of(frame) == "extend":  # the store is away, but the server answers
                end.refuse(frame, "unavailable")
            elif frame["type"] == "settle":
                (settlement,) = frame["settlements"]
                assert (settlement["action"], settlement["id"]) == ("release", "a")
                assert [lease.id for lease in end.session.lost] == ["a"]
                return
    raise AssertionError("the lease was never given back")


def test_progress_is_reported_at_once_and_then_once_a_second_the_newest(end: WorkerEnd) -> None:
    end.push("a", "b")
    end.session.report("q", Report("a", 1, 0.1, "one"))
    first = end.only()
    assert first["reports"] == [{"id": "a", "lease": 1, "fraction": 0.1, "text": "one"}]
    for percent in range(20, 60):
        end.session.report("q", Report("a", 1, percent / 100))
        end.session.report("q", Report("b", 1, percent / 200))
    end.session.report("q", Report("a", 0, 0.9))  # of a lease that was lost
    assert end.sent() == []
    end.session.expire(end.now)
    end.pass_time(0.9)
    assert end.sent() == []
    end.pass_time(0.1)
    second = end.only()
    assert [(report["id"], report["fraction"]) for report in second["reports"]] == [("a", 0.59), ("b", 0.295)]
    end.now += 1
    assert end.sent() == []


def test_progress_in_text_that_is_not_unicode_is_reported(end: WorkerEnd) -> None:
    end.push("a")
    end.session.report("q", Report("a", 1, 0.5, "caf\udce9"))
    assert [report["text"] for report in end.only()["reports"]] == ["caf?"]


def test_progress_of_what_is_not_held_is_not_reported(end: WorkerEnd) -> None:
    end.push("a")
    end.session.report("q", Report("other", 1, 0.5))
    end.session.report("q", Report("a", 2, 0.5))
    end.session.report("q", Report("a", 1, 0.5))
    end.ack("a")
    assert [frame["type"] for frame in end.sent()] == ["settle"]


def test_progress_that_was_refused_or_lost_is_not_repeated(end: WorkerEnd) -> None:
    end.push("a")
    end.session.report("q", Report("a", 1, 0.5))
    end.refuse(end.only(), "unavailable")
    end.now += 5
    assert end.sent() == []
    assert end.session.fatal is None


def test_what_a_worker_says_of_itself_goes_with_every_attach() -> None:
    end = WorkerEnd(queues=("a", "b"))
    end.session.started_at_ms = 5
    end.connect()
    assert end.only()["started_at_ms"] == 5


def test_a_result_too_long_for_this_server_makes_its_task_dead_with_the_reason() -> None:
    end = WorkerEnd().attach(max_message_bytes=65_536)
    end.push("a", "b")
    end.session.settle("q", Settlement("ack", "a", 1, result=b'"' + b"x" * 70_000 + b'"'))
    end.session.settle("q", Settlement("ack", "b", 1, result=b"1"))
    (frame,) = end.frames("settle")
    first, second = frame["settlements"]
    assert (first["action"], first["id"], "the result is too large" in first["error"]) == ("reject", "a", True)
    assert (second["action"], second["result"]) == ("ack", 1)


def test_results_that_would_take_long_to_read_go_in_several_frames_and_one_too_long_alone_is_dead() -> None:
    end = WorkerEnd(credit=20).attach()
    names = [f"n{n}" for n in range(12)]
    end.push(*names, "bad")
    table = b"[" + b"0," * 60_000 + b"0]"
    for name in names[:6]:
        end.session.settle("q", Settlement("ack", name, 1, result=table))
    end.session.settle("q", Settlement("ack", "bad", 1, result=b"[" + b"0," * MAX_COST + b"0]"))
    for name in names[6:]:
        end.session.settle("q", Settlement("ack", name, 1, result=table))
    seen: list[tuple[str, str]] = []
    for _ in range(20):
        for text in map(str, end.session.outgoing(end.now)):
            check_cost(text)
            frame = json.loads(text)
            if frame["type"] == "settle":
                seen += [(each["action"], each["id"]) for each in frame["settlements"]]
                end.reply(frame, outcomes=["ok"] * len(frame["settlements"]))
    assert sorted(seen) == sorted([("reject", "bad"), *(("ack", name) for name in names)])


LINK = Link("next", NewTask("link", b"[1]", delay_ms=5))


def test_links_go_with_their_acknowledgement(end: WorkerEnd) -> None:
    end.push("a")
    end.session.settle("q", Settlement("ack", "a", 1, links=(LINK, Link("q", NewTask("b", b"2")))))
    assert end.only()["settlements"] == [
        {
            "action": "ack",
            "id": "a",
            "lease": 1,
            "links": [
                {"queue": "next", "id": "link", "payload": [1], "delay_ms": 5},
                {"queue": "q", "id": "b", "payload": 2},
            ],
        }
    ]


@pytest.mark.parametrize("code", ["repairing", "unavailable"])
def test_a_linked_queue_that_cannot_be_served_keeps_no_other_settlement_waiting(end: WorkerEnd, code: str) -> None:
    end.push("a", "b", "c", "d")
    for id, links in (("a", ()), ("b", (LINK,)), ("c", (Link("q", NewTask("x", b"2")),))):
        end.session.settle("q", Settlement("ack", id, 1, links=links))
    end.refuse(end.only(), code)
    end.session.settle("q", Settlement("ack", "d", 1))
    settled: list[str] = []
    for _ in range(20):
        end.now += 4
        for frame in end.sent():
            if frame["type"] == "settle" and "b" in ids(frame):
                end.refuse(frame, code)
            elif frame["type"] == "settle":
                settled += ids(frame)
                end.stored(frame)
    assert settled == ["a", "c", "d"]
    assert end.session.holding == 1


def test_an_attempt_fails_within_its_lease_whose_links_find_no_store(end: WorkerEnd) -> None:
    end.push("a", lease_s=30)
    end.now += 9.9  # it was not renewed yet
    end.session.settle("q", Settlement("ack", "a", 1, links=(LINK,)))
    lease_ends, seen = end.now + 20.1, list[dict[str, Any]]()
    while end.session.holding and end.now < lease_ends:
        end.now += 0.1
        for frame in end.frames("settle"):
            seen += frame["settlements"]
            if seen[-1]["action"] == "ack":
                end.refuse(frame, "unavailable")
            else:
                end.stored(frame)
    assert end.session.holding == 0
    assert [each["action"] for each in seen[-2:]] == ["ack", "nack"]
    assert seen[-1]["error"].startswith("the server refused its links: ")
    assert end.session.alone == {}


@pytest.mark.parametrize("code", ["bad_request", "store_full", "quota_exceeded", "deleting"])
def test_an_attempt_has_failed_whose_links_the_server_refuses(end: WorkerEnd, code: str) -> None:
    end.push("a", "b")
    end.session.settle("q", Settlement("ack", "a", 1, links=(LINK,)))
    end.session.settle("q", Settlement("ack", "b", 1))
    end.refuse(end.only(), code)
    found: dict[str, dict[str, Any]] = {}
    for _ in range(3):
        for frame in end.sent():
            (settlement,) = frame["settlements"]
            found[settlement["id"]] = settlement
            if "links" in settlement:
                end.refuse(frame, code)
            else:
                end.stored(frame)
    assert found["a"]["action"] == "nack"
    assert found["a"]["error"].startswith("the server refused its links: ")
    assert found["b"]["action"] == "ack"
    assert end.session.holding == 0


def derive(end: WorkerEnd, id: str, new: str, queue: str = "next", payload: bytes = b"1") -> Call:
    """Enqueue a task for the handler of a leased one."""
    return end.session.enqueue(queue, [NewTask(new, payload)], end.now + 30, HeldLease("q", id, 1))


def test_what_handlers_enqueue_at_once_shares_frames_of_one_queue_each(end: WorkerEnd) -> None:
    end.push("ada/a", "bob/b")
    calls = [derive(end, "ada/a", "x"), derive(end, "bob/b", "y"), derive(end, "ada/a", "z", "other")]
    first, second = end.frames("enqueue_from")
    assert (first["queue"], ids(first)) == ("next", ["x", "y"])
    assert first["leases"] == [{"queue": "q", "id": id, "lease": 1} for id in ("ada/a", "bob/b")]
    assert (second["queue"], ids(second)) == ("other", ["z"])
    calls += [derive(end, "ada/a", f"l-{n}") for n in range(501)]
    assert end.sent() == [], "two are under way"
    end.reply(first, outcomes=["ok", "duplicate other"])
    assert [call.result for call in calls[:2]] == [["ok"], ["duplicate other"]]
    assert len(end.only()["tasks"]) == 500
    end.stored(second)
    assert len(end.only()["tasks"]) == 1


def test_a_refusal_of_what_a_handler_enqueues_is_its_calls_own(end: WorkerEnd) -> None:
    end.push("ada/a", "ada/b", "bob/c")
    lost, good, theirs = derive(end, "ada/a", "x"), derive(end, "ada/b", "y"), derive(end, "bob/c", "z")
    why = {"code": "forbidden", "message": "not held", "field": "leases"}
    end.reply(end.only(), outcomes=["refused", "refused", "ok"], refusals={"ada": why})
    assert (lost.is_done, good.is_done, theirs.result) == (False, False, ["ok"])
    one, other = end.sent()
    assert (ids(one), ids(other)) == (["x"], ["y"]), "apart, to find out which"
    end.refuse(one, "forbidden", "leases")
    end.stored(other)
    assert lost.error is not None
    assert (lost.error.code, lost.error.field, good.result) == ("forbidden", "leases", ["ok"])


def test_what_handlers_enqueue_is_sent_again_after_the_attach(end: WorkerEnd) -> None:
    end.push("a")
    call = derive(end, "a", "x")
    assert len(end.sent()) == 1
    end.disconnect()
    end.connect()
    attach = end.only()
    assert attach["type"] == "attach"
    end.reply(attach, leases=["ok"])
    end.stored(end.only())
    assert call.result == ["ok"]


def test_a_draining_server_still_enqueues_for_handlers(end: WorkerEnd) -> None:
    """It knows their leases; a new connection would have to bring them first."""
    end.push("a")
    end.hear({"type": "drain"})
    end.session.enqueue("q", [NewTask("plain", b"1")], end.now + 30)
    derive(end, "a", "x")
    (frame,) = end.sent()
    assert (frame["type"], ids(frame)) == ("enqueue_from", ["x"])


def test_a_call_without_an_answer_fails_when_its_time_is_over(end: WorkerEnd) -> None:
    end.push("a")
    call = derive(end, "a", "x")
    assert len(end.sent()) == 1
    end.session.expire(end.now + 31)
    assert call.error is not None
    assert call.error.code == "outcome_unknown"


def test_long_links_go_in_several_frames(end: WorkerEnd) -> None:
    end.push(*"abcde")
    for id in "abcde":
        links = tuple(Link("next", NewTask(f"{id}-{n}", b'"' + b"x" * 60_000 + b'"')) for n in range(16))
        end.session.settle("q", Settlement("ack", id, 1, links=links))
    count = 0
    for _ in range(5):
        for message in end.session.outgoing(end.now):
            assert len(message) <= end.session.enqueues.limits.message_bytes
            frame = json.loads(str(message))
            count += len(frame["settlements"])
            end.stored(frame)
    assert count == 5


def test_renewals_and_reports_keep_to_the_servers_limits() -> None:
    end = WorkerEnd(credit=500).attach(max_message_bytes=65_536)
    names = [f"{n:064}" for n in range(400)]
    end.push(*names)
    for name in names:
        end.session.report("q", Report(name, 1, 0.5, "\0" * 200))
    end.pass_time(LEASE_S / 3)
    texts = [str(message) for message in end.session.outgoing(end.now)]
    assert sum(text.count('"lease"') for text in texts) == 800
    assert all(len(text) < 65_536 for text in texts)


def test_the_longest_leases_fit_into_the_shortest_messages() -> None:
    queues = tuple(f"{n:063}" for n in range(100))
    end, limits = WorkerEnd(credit=500, queues=queues), {"max_message_bytes": 65_536 + 1024}
    end.session.worker = "w" * 64
    end.attach(**limits)
    names = [f"{'t' * 128}/{n:064}+{n:08x}-{n:016}" for n in range(500)]
    end.push(*names, lease=MAX_LEASE, queue=queues[0])
    end.pass_time(LEASE_S / 3)
    assert sum(map(len, map(ids, end.frames("extend")))) == 500
    end.disconnect()
    end.attach(**limits)
    assert end.ack(*names, lease=MAX_LEASE, queue=queues[0])
    count = 0
    while frames := end.frames("settle"):
        for frame in frames:
            count += len(ids(frame))
            end.stored(frame)
    assert count == 500


def test_a_queue_that_refuses_settlements_delays_no_other() -> None:
    for code in ["unavailable", "outcome_unknown", "repairing"]:
        with case(code):
            end = WorkerEnd(queues=("bad", "good")).attach()
            end.push("a", "b", queue="bad")
            end.push("c", "d", queue="good")
            end.ack("a", queue="bad")
            end.refuse(end.only(), code)
            end.ack("b", queue="bad")
            end.ack("c", "d", queue="good")
            assert end.session.unsent == 2  # those of `bad` do not leave at the end of this turn
            frame = end.only()
            assert (frame["queue"], ids(frame)) == ("good", ["c", "d"])
            end.stored(frame)
            end.enqueue("new", queue="good")
            end.session.credit = 7
            assert [frame["type"] for frame in end.sent()] == ["credit", "enqueue"]
            end.session.expire(end.now)
            assert end.session.deadline() - end.now == pytest.approx(0.075)
            end.pass_time(0.08)
            assert ids(end.only()) == ["a", "b"]
            end.push("e", queue="bad")
            end.ack("e", queue="bad")
            assert (end.session.unsent, end.sent()) == (0, [])  # one frame at most of a queue that was refused
            for id in ("f", "g"):
                end.push(id, queue="good")
                end.ack(id, queue="good")
                assert ids(end.only()) == [id]
