"""A client's waits for the ends of tasks: what shares a request, what is asked again, and the last look."""

from __future__ import annotations

from typing import Any

import pytest

from fairq.errors import BadFrame, Closed, Forbidden, NotYet, OutcomeUnknown, Unavailable
from fairq.wire.calls import Call
from fairq.wire.terms import ANSWER_S, WAIT_MS
from fairq.wire.waits import MAX_WAITED

from .ends import End


@pytest.fixture
def end() -> End:
    return End().connect()


def wait(end: End, id: str, seconds: float = 3600, queue: str = "q") -> Call:
    return end.session.wait_task(queue, id, end.now + seconds)


def row(id: str) -> dict[str, Any]:
    """Say that a task is done."""
    return {"id": id, "state": "done", "result": id.upper()}


def report_ends(end: End, request: dict[str, Any], *ids: str) -> None:
    """Take in part of the answer to a request."""
    end.hear({"type": "ended", "ref": request["ref"], "tasks": [row(id) for id in ids]})


def answered(end: End, request: dict[str, Any], *ids: str) -> None:
    """Take in the end of the answer to a request."""
    end.reply(request, tasks=[row(id) for id in ids])


def test_waits_share_requests_of_five_hundred_ids_of_one_queue(end: End) -> None:
    for n in range(1_200):
        wait(end, f"t{n}")
    wait(end, "other", queue="r")
    frames = end.sent()
    assert [(frame["type"], frame["queue"], len(frame["ids"])) for frame in frames] == [
        ("wait_tasks", "q", 500), ("wait_tasks", "q", 500), ("wait_tasks", "q", 200), ("wait_tasks", "r", 1),
    ]  # fmt: skip
    assert {frame["timeout_ms"] for frame in frames} == {WAIT_MS}
    assert end.sent() == []


def test_each_end_finishes_its_wait_and_nothing_is_asked_again(end: End) -> None:
    calls = {id: wait(end, id) for id in "abc"}
    request = end.only()
    report_ends(end, request, "b")
    assert [calls[id].is_done for id in "abc"] == [False, True, False]
    report_ends(end, request, "a")
    answered(end, request, "c")
    assert [call.result for call in calls.values()] == [row(id) for id in "abc"]
    assert end.sent() == []


def test_who_is_left_when_the_time_is_up_shares_one_request_with_newcomers(end: End) -> None:
    for id in "ab":
        wait(end, id)
    first = end.only()
    report_ends(end, first, "a")
    wait(end, "c")
    second = end.only()
    assert second["ids"] == ["c"]
    answered(end, first)
    answered(end, second)
    assert end.only()["ids"] == ["b", "c"]


def test_two_who_wait_for_one_task_ask_for_it_once(end: End) -> None:
    calls = [wait(end, "a"), wait(end, "a")]
    request = end.only()
    assert request["ids"] == ["a"]
    answered(end, request, "a")
    assert [call.result for call in calls] == [row("a")] * 2


def test_at_its_deadline_a_wait_takes_a_last_look(end: End) -> None:
    late, early = wait(end, "late"), wait(end, "early", 3)
    first = end.only()
    end.pass_time(3)
    look = end.only()
    assert (look["ids"], look["timeout_ms"]) == (["early"], 0)
    assert not early.is_done
    end.reply(look, tasks=[])
    assert isinstance(early.error, NotYet)
    assert early.error.field == "id"
    answered(end, first)
    assert end.only()["ids"] == ["late"]
    assert not late.is_done


def test_a_wait_without_any_time_looks_once(end: End) -> None:
    found, missed = wait(end, "found", 0), wait(end, "missed", 0)
    look = end.only()
    assert (look["ids"], look["timeout_ms"]) == (["found", "missed"], 0)
    answered(end, look, "found")
    assert found.result == row("found")
    assert isinstance(missed.error, NotYet)


def test_an_end_that_is_reported_during_the_last_look_counts(end: End) -> None:
    call = wait(end, "a", 3)
    first = end.only()
    end.pass_time(3)
    look = end.only()
    report_ends(end, first, "a")
    end.reply(look, tasks=[])
    assert call.result == row("a")
    assert call.error is None
    answered(end, first)
    assert end.sent() == []


def test_a_last_look_without_an_answer_ends_in_doubt(end: End) -> None:
    call = wait(end, "a", 0)
    end.only()
    end.pass_time(ANSWER_S)
    assert isinstance(call.error, OutcomeUnknown)


def test_a_wait_that_could_not_be_sent_says_so() -> None:
    end = End()
    call = wait(end, "a", 3)
    end.pass_time(3)
    assert not call.is_done
    end.pass_time(ANSWER_S)
    assert isinstance(call.error, Unavailable)


def test_waits_are_sent_again_on_the_next_connection(end: End) -> None:
    calls = [wait(end, id) for id in "ab"]
    report_ends(end, end.only(), "a")
    end.disconnect()
    assert end.sent() == []
    end.connect()
    request = end.only()
    assert request["ids"] == ["b"]
    answered(end, request, "b")
    assert [call.result for call in calls] == [row("a"), row("b")]


def test_a_refusal_for_now_is_asked_again_later_and_a_final_one_ends_all(end: End) -> None:
    call = wait(end, "a")
    end.refuse(end.only(), "too_many")
    assert end.sent() == []
    end.pass_time(1)
    again = end.only()
    assert again["ids"] == ["a"]
    end.refuse(again, "forbidden", "queue")
    assert isinstance(call.error, Forbidden)


def test_a_last_look_that_is_refused_for_now_is_taken_again(end: End) -> None:
    call = wait(end, "a", 0)
    end.refuse(end.only(), "unavailable")
    end.pass_time(1)
    look = end.only()
    assert look["timeout_ms"] == 0
    end.reply(look, tasks=[])
    assert isinstance(call.error, NotYet)


def test_the_server_waits_for_so_many_at_once_and_the_others_have_their_turn(end: End) -> None:
    for n in range(MAX_WAITED + 700):
        wait(end, f"t{n}")
    frames = end.sent()
    assert sum(len(frame["ids"]) for frame in frames) == MAX_WAITED
    report_ends(end, frames[0], *frames[0]["ids"][:100])  # there is room for as many others
    newcomers = end.only()
    assert newcomers["ids"] == [f"t{MAX_WAITED + n}" for n in range(100)]
    answered(end, frames[1])  # none of these has ended: they go behind those that were not asked for yet
    assert [id for frame in end.sent() for id in frame["ids"]] == [f"t{MAX_WAITED + n}" for n in range(100, 600)]


def test_the_queue_with_the_most_waits_leaves_turns_to_the_others(end: End) -> None:
    for n in range(2 * MAX_WAITED):
        wait(end, f"t{n}")
    first = end.sent()
    wait(end, "other", queue="r")
    assert end.sent() == []
    for request in first[:2]:
        answered(end, request)
        last = [(frame["queue"], len(frame["ids"])) for frame in end.sent()]
    assert last == [("r", 1), ("q", 499)]


def test_the_server_waits_no_longer_than_somebody_waits_for_the_answer(end: End) -> None:
    for seconds in 2, 3.0004:
        wait(end, f"t{seconds}", seconds)
    assert end.only()["timeout_ms"] == 3_001
    wait(end, "patient", float("inf"))
    assert end.only()["timeout_ms"] == WAIT_MS


def test_waits_without_any_time_left_take_no_place_at_the_server(end: End) -> None:
    for n in range(MAX_WAITED + 1):
        wait(end, f"t{n}")
    end.sent()
    wait(end, "now", 0)
    end.pass_time(0)
    assert (look := end.only())["ids"] == ["now"]
    assert look["timeout_ms"] == 0


def test_a_task_for_which_nobody_waits_any_more_is_not_asked_for_again(end: End) -> None:
    left, stayed = wait(end, "left"), wait(end, "stayed")
    request = end.only()
    left.leave()
    answered(end, request)
    assert end.only()["ids"] == ["stayed"]
    assert not stayed.is_done


def test_waits_end_with_the_session(end: End) -> None:
    call = wait(end, "a", float("inf"))
    end.only()
    end.session.close()
    assert isinstance(call.error, Closed)


@pytest.mark.parametrize("tasks", [[{"state": "done"}], ["a"], [{"id": 5}]])
def test_an_end_without_an_id_is_no_answer(end: End, tasks: list[Any]) -> None:
    call = wait(end, "a")
    request = end.only()
    for frame in {"type": "ended", "tasks": tasks}, {"type": "reply", "body": {"tasks": tasks}}:
        with pytest.raises(BadFrame):
            end.hear({**frame, "ref": request["ref"]})
    assert not call.is_done


def test_only_a_request_that_waits_has_an_answer_in_parts(end: End) -> None:
    end.session.request("tasks", {"queue": "q", "ids": ["a"]}, end.now + 9)
    with pytest.raises(BadFrame):
        report_ends(end, end.only(), "a")


def test_waits_in_a_queue_that_is_refused_delay_no_others(end: End) -> None:
    bad = wait(end, "a", queue="bad")
    end.refuse(end.only(), "unavailable")
    last, good = wait(end, "b", 0, queue="bad"), wait(end, "c", queue="good")
    request = end.only()
    assert request["ids"] == ["c"]
    answered(end, request, "c")
    assert (bad.is_done, last.is_done, good.result) == (False, False, row("c"))
    end.session.expire(end.now)
    assert end.session.deadline() - end.now == pytest.approx(0.075)
    end.pass_time(0.08)
    for request in end.sent():
        answered(end, request, *request["ids"])
    assert (bad.result, last.result) == (row("a"), row("b"))
