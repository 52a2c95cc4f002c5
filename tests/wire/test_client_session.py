"""The client's end alone: frames shared by calls, what is sent again, and how calls fail."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairq.errors import BadFrame, BadRequest, Closed, Draining, OutcomeUnknown, TooLarge, Unavailable
from fairq.model.tasks import NewTask
from fairq.wire.client_session import MAX_APART, RECONNECT_BASE_S, RECONNECT_CAP_S
from fairq.wire.enqueues import SEND_WINDOW
from fairq.wire.pauses import REMEMBERED_S
from fairq.wire.strict_json import MAX_COST, check_cost
from tests.frames import read_frame
from tests.store.cases import case

from .ends import End, ids


@pytest.fixture
def end() -> End:
    return End().connect()


def test_calls_made_before_the_next_flush_share_one_frame(end: End) -> None:
    calls = [end.enqueue("a"), end.enqueue("b", "c"), end.enqueue("d")]
    frame = end.only()
    assert ids(frame) == ["a", "b", "c", "d"]
    end.reply(frame, outcomes=["ok", "duplicate", "ok", "expired"])
    assert [call.result for call in calls] == [["ok"], ["duplicate", "ok"], ["expired"]]


def test_two_enqueues_are_under_way_at_most_and_the_rest_gathers(end: End) -> None:
    frames = []
    for id in "abcde":
        end.enqueue(id)
        frames += end.sent()
    assert [ids(frame) for frame in frames] == [["a"], ["b"]]
    assert len(frames) == SEND_WINDOW
    end.stored(frames[0])
    assert ids(end.only()) == ["c", "d", "e"]


def test_requests_are_not_held_back_by_the_window(end: End) -> None:
    for id in "abc":
        end.enqueue(id)
        end.sent()
    call = end.session.request("tasks", {"queue": "q", "ids": ["a"]}, end.now + 9)
    frame = end.only()
    assert (frame["type"], frame["ids"]) == ("tasks", ["a"])
    end.reply(frame, tasks=[])
    assert call.result == {"tasks": []}


def test_frames_hold_tasks_of_one_queue_and_queues_take_turns() -> None:
    end = End().connect(max_batch=2)
    for id, queue in ("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("c1", "c"):
        end.enqueue(id, queue=queue)
    first, second = end.sent()
    assert [(frame["queue"], ids(frame)) for frame in (first, second)] == [("a", ["a1", "a2"]), ("b", ["b1"])]
    end.stored(first)
    assert end.only()["queue"] == "c"


def test_tasks_that_ask_for_what_few_ask_for_take_three_places() -> None:
    asked: dict[str, Any] = {"priority": 1, "dedupe_key": "k", "result_ttl_ms": 1, "events": True, "batch": "b"}
    for name, value in asked.items():
        options = {name: value}
        with case(options):
            end = End().connect(max_batch=7)
            end.enqueue(*"abc", **options)
            end.enqueue(*"defgh")
            assert [ids(frame) for frame in end.sent()] == [list("ab"), list("cdefg")]
            end = End().connect(max_batch=2)
            end.enqueue(*"ab", **options)
            assert [ids(frame) for frame in end.sent()] == [["a"], ["b"]]


def test_frames_are_split_by_bytes_too() -> None:
    end = End().connect(max_message_bytes=100_000)
    end.enqueue(*"abcde", payload=b'"' + b"x" * 40_000 + b'"')
    texts = end.session.outgoing(end.now)
    assert [len(json.loads(text)["tasks"]) for text in texts] == [2, 2]
    assert all(len(text) <= 100_000 for text in texts)


def test_a_tenants_task_for_which_a_frame_has_no_room_is_first_in_the_next() -> None:
    end = End().connect(role="producer", max_message_bytes=100_000)
    for id in "a/1", "a/2", "b/3":
        end.enqueue(id, payload=b'"' + b"x" * 60_000 + b'"')
    assert [ids(frame) for frame in end.sent()] == [["1"], ["3"]]


def test_a_task_whose_options_are_too_long_fails_its_call() -> None:
    end = End().connect(max_message_bytes=65_536)
    call = end.enqueue("a", group="g" * 70_000)
    assert end.sent() == []
    assert isinstance(call.error, TooLarge)


def test_options_of_tasks_travel_only_when_given(end: End) -> None:
    end.session.enqueue("q", [NewTask("t", b"[1]", delay_ms=5, max_attempts=2)], end.now + 9)
    assert end.only()["tasks"] == [{"id": "t", "payload": [1], "delay_ms": 5, "max_attempts": 2}]


def test_what_had_no_answer_is_sent_again_in_order_with_the_same_ids(end: End) -> None:
    calls = [end.enqueue("a")]
    sent = [ids(frame) for frame in end.sent()]
    asked = end.session.request("queues", {}, end.now + 30)
    calls += [end.enqueue("b", "c")]
    end.sent()
    calls += [end.enqueue("d")]
    end.disconnect()
    assert sent == [["a"]]
    assert end.sent() == []

    end.connect()
    asking, frame = end.sent()
    assert ids(frame) == ["a", "b", "c", "d"]
    end.reply(frame, outcomes=["duplicate", "duplicate", "ok", "ok"])
    end.reply(asking, queues=[])
    assert [call.result for call in calls] == [["duplicate"], ["duplicate", "ok"], ["ok"]]
    assert asked.result == {"queues": []}


def test_answers_to_frames_of_an_earlier_connection_are_refused(end: End) -> None:
    call = end.enqueue("a")
    old = end.only()
    end.disconnect()
    end.connect()
    new = end.only()
    with pytest.raises(BadFrame):
        end.stored(old)
    assert not call.is_done
    end.stored(new)
    assert call.result == ["ok"]


@pytest.mark.parametrize("body", [{}, {"outcomes": ["ok"]}, {"outcomes": ["ok"] * 3}, {"outcomes": "ok"}])
def test_an_answer_that_does_not_fit_counts_as_none(end: End, body: dict[str, Any]) -> None:
    call = end.enqueue("a", "b")
    with pytest.raises(BadFrame):
        end.reply(end.only(), **body)
    end.disconnect()
    end.connect()
    assert ids(end.only()) == ["a", "b"]
    assert not call.is_done


@pytest.mark.parametrize("code", ["unavailable", "outcome_unknown", "too_many", "draining"])
def test_passing_refusals_are_sent_again_after_a_growing_pause(end: End, code: str) -> None:
    call, pauses = end.enqueue("a"), []
    for _ in range(4):
        end.refuse(end.only(), code)
        assert end.sent() == []
        pauses.append(end.session.deadline() - end.now)
        end.pass_time(pauses[-1])
    assert pauses == pytest.approx([0.075, 0.15, 0.3, 0.6])
    end.stored(end.only())
    assert call.result == ["ok"]


def test_tenants_whose_partition_is_away_delay_no_other() -> None:
    """Their tasks go apart, one frame at a time, after growing pauses, and in their order."""
    end = End().connect(role="producer")
    away = [end.enqueue("lost/1"), end.enqueue("lost/2")]
    served = end.enqueue("quiet/1")
    first, refusals = end.only(), {"lost": {"code": "unavailable", "message": "away"}}
    away.append(end.enqueue("lost/3"))
    end.reply(first, outcomes=["refused", "refused", "ok"], refusals=refusals)
    assert served.result == ["ok"]
    away.append(end.enqueue("lost/4"))
    pauses = []
    for n in range(3):
        quiet = end.enqueue(f"quiet/{n + 2}")
        end.stored(end.only())
        assert quiet.is_done
        pauses.append(end.session.deadline() - end.now)
        end.pass_time(pauses[-1])
        lost = end.only()
        assert [task["id"] for task in lost["tasks"]] == ["1", "2", "3", "4"]
        if n < 2:
            end.reply(lost, outcomes=["refused"] * 4, refusals=refusals)
    assert pauses == pytest.approx([0.075, 0.15, 0.3])
    end.stored(lost)
    assert [call.result for call in away] == [["ok"]] * 4
    end.enqueue("lost/5"), end.enqueue("quiet/9")
    assert len(end.only()["tasks"]) == 2


def test_a_producers_tenant_that_has_too_many_requests_delays_no_other() -> None:
    end = End().connect(role="producer")
    for tenant in ("flood", "quiet"):
        end.session.request("tasks", {"queue": "q", "ids": [f"{tenant}/1"]}, end.now + 9)
    flood, quiet = end.sent()
    pauses = []
    for _ in range(3):
        end.refuse(flood, "too_many")
        assert end.sent() == []
        end.session.request("tasks", {"queue": "q", "ids": ["quiet/2"]}, end.now + 9)
        end.reply(end.only(), tasks=[])
        pauses.append(end.session.deadline() - end.now)
        end.pass_time(pauses[-1])
        flood = end.only()
        assert flood["ids"] == ["flood/1"]
    assert pauses == pytest.approx([0.075, 0.15, 0.3])
    end.reply(quiet, tasks=[])
    end.disconnect()
    end.connect(role="producer")
    assert end.only()["ids"] == ["flood/1"]


def test_the_pause_is_short_again_after_an_answer(end: End) -> None:
    end.enqueue("a")
    for _ in range(4):
        end.refuse(end.only(), "too_many")
        end.pass_time(1)
    end.stored(end.only())
    end.enqueue("b")
    end.refuse(end.only(), "too_many")
    assert end.session.deadline() - end.now == pytest.approx(0.075)


def test_a_request_that_is_not_json_fails_alone(end: End) -> None:
    bad = [end.session.request("tasks", {"queue": "q", "ids": [id]}, end.now + 9) for id in ("\ud800", {1}, 2**70)]
    end.session.request("tasks", {"queue": "q", "ids": ["a"]}, end.now + 9)
    assert end.only()["ids"] == ["a"]
    assert {type(call.error) for call in bad} == {BadRequest}


def test_a_final_refusal_of_a_request_fails_it_at_once(end: End) -> None:
    call = end.session.request("tenants", {"queue": "x"}, end.now + 9)
    end.refuse(end.only(), "not_found", "queue")
    assert call.error is not None
    assert (call.error.code, call.error.field) == ("not_found", "queue")


def test_a_refusal_with_a_code_of_the_future_is_final_and_keeps_its_code(end: End) -> None:
    call = end.enqueue("a")
    end.refuse(end.only(), "out_of_cheese")
    assert call.error is not None
    assert call.error.code == "out_of_cheese"


def test_a_connection_ends_the_trouble_before_it() -> None:
    """The next one is warned of again, and no call tells of the old one."""
    end = End()
    end.session.trouble = "connection refused"
    call = end.enqueue("a", timeout=3)
    end.session.connected(end.now)
    end.pass_time(3)
    assert isinstance(call.error, Unavailable)
    assert call.error.message.endswith("(no welcome)")


def test_a_call_refused_until_its_deadline_ends_with_the_last_refusal(end: End) -> None:
    call = end.enqueue("a", timeout=3)
    end.refuse(end.only(), "too_many")
    end.pass_time(1)
    end.refuse(end.only(), "draining")
    end.pass_time(2)
    assert isinstance(call.error, Draining)


def test_a_call_refused_with_an_unknown_outcome_stays_in_doubt(end: End) -> None:
    call = end.enqueue("a", timeout=3)
    end.refuse(end.only(), "outcome_unknown")
    end.pass_time(1)
    end.refuse(end.only(), "unavailable")
    end.pass_time(3)
    assert isinstance(call.error, OutcomeUnknown)


def test_an_enqueue_in_doubt_names_the_tasks_that_have_no_outcome(end: End) -> None:
    few, many = end.enqueue("a", "b", timeout=3), end.enqueue(*map(str, range(12)), timeout=3)
    end.sent()
    end.pass_time(3)
    for call, named in (few, "2 of 2 tasks (a, b)"), (many, "12 of 12 tasks (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more)"):
        assert isinstance(call.error, OutcomeUnknown)
        assert named in call.error.message


def test_a_call_that_times_out_has_no_error_of_another_that_shared_its_frame(end: End) -> None:
    bad, good = end.enqueue("bad", timeout=9), end.enqueue("good", timeout=1)
    end.refuse(end.only(), "bad_request")
    end.pass_time(1)
    assert not bad.is_done
    assert isinstance(good.error, Unavailable)


def test_closing_fails_all_that_waits(end: End) -> None:
    done, waits = end.enqueue("a"), end.enqueue("b", timeout=float("inf"))
    end.stored(end.only())
    later = end.session.request("queues", {}, end.now + 9)
    end.session.close()
    assert done.result == waits.result == ["ok"]
    assert isinstance(later.error, Closed)


def test_done_calls_do_not_pile_up(end: End) -> None:
    for _ in range(20):
        for number in range(500):
            end.enqueue(f"t-{number}")
        for frame in end.sent():
            end.stored(frame)
    assert len(end.session._calls) <= 2_000


def call_much(end: End) -> int:
    """Make 30,000 calls of all kinds that time out; returns how much is kept of them."""
    session = end.session
    for _ in range(20):
        for number in range(500):
            end.enqueue(f"t-{number}", timeout=1)
            session.request("tasks", {"queue": "emails"}, end.now + 1)
            session.wait_task("emails", f"t-{number}", end.now + 1)
        end.pass_time(60)
    lines = [
        line
        for each in (session.enqueues.lines, session.waits.lines)
        for lines in each.values()
        for line in lines.values()
    ]
    return len(session._calls) + len(session.requests) + sum(map(len, lines))


def test_what_calls_given_up_would_have_sent_does_not_pile_up_while_no_server_is_there(end: End) -> None:
    end.disconnect()
    end.enqueue("patient", timeout=1e6)
    end.session.request("queues", {}, 1e6)
    assert call_much(end) <= 6_000
    request, enqueue = end.connect().sent()
    assert (request["type"], ids(enqueue)) == ("queues", ["patient"])


def test_calls_after_the_end_leave_nothing(end: End) -> None:
    end.session.close()
    assert call_much(end) <= 1_000


def test_a_draining_server_gets_no_new_tasks_and_the_next_connection_is_made_at_once(end: End) -> None:
    end.hear({"type": "drain"})
    call = end.enqueue("a")
    assert end.sent() == []
    end.now += 1
    end.disconnect()
    assert end.session.reconnect_at == end.now
    end.stored(end.connect().only())
    assert call.result == ["ok"]


def test_an_error_without_ref_is_fatal(end: End) -> None:
    end.hear({"type": "error", "code": "bad_frame", "message": "what?"})
    assert end.session.fatal is not None
    assert end.session.fatal.code == "bad_frame"


def test_reconnecting_waits_longer_each_time_with_full_jitter() -> None:
    for jitter in [0.0, 0.5, 0.999]:
        with case(jitter):
            end, waits = End(jitter=lambda jitter=jitter: jitter), []  # type: ignore[misc]
            for _ in range(10):
                end.disconnect()
                waits.append(end.session.reconnect_at - end.now)
                end.now = end.session.reconnect_at
            bounds = [min(RECONNECT_CAP_S, RECONNECT_BASE_S * 2**n) for n in range(10)]
            assert waits == pytest.approx([jitter * bound for bound in bounds])


def test_a_connection_that_lasted_starts_the_waits_anew_and_a_short_one_does_not() -> None:
    end = End()
    for _ in range(5):
        end.disconnect()
    end.connect()
    end.now += 1
    end.disconnect()
    assert end.session.reconnect_at - end.now > 1
    end.connect()
    end.now += RECONNECT_CAP_S
    end.disconnect()
    assert end.session.reconnect_at - end.now == pytest.approx(RECONNECT_BASE_S / 2)


def test_a_request_too_long_for_this_server_fails_and_is_never_sent() -> None:
    end = End().connect(max_message_bytes=65_536)
    long = end.session.request("tasks", {"queue": "q", "ids": ["i" * 60] * 1_100}, 200.0)
    short = end.session.request("tasks", {"queue": "q", "ids": ["a"]}, 200.0)
    assert end.only()["ids"] == ["a"]
    assert isinstance(long.error, TooLarge)
    assert not short.is_done


def test_tasks_that_would_take_long_to_read_go_in_several_frames(end: End) -> None:
    table = json.dumps([0] * 30_000).replace(" ", "").encode()
    calls = [end.enqueue(*(f"{name}{n}" for n in range(20)), payload=table) for name in "ab"]
    sent: list[str] = []
    for _ in range(100):
        if all(call.is_done for call in calls):
            break
        for frame in end.sent():
            check_cost(json.dumps(frame))
            sent += ids(frame)
            end.stored(frame)
    assert [call.result for call in calls] == [["ok"] * 20] * 2
    assert sorted(sent) == sorted(f"{name}{n}" for name in "ab" for n in range(20))


def test_a_payload_of_many_values_goes_beside_its_frame(end: End) -> None:
    call = end.enqueue("dense", payload=b"[" + b"0," * MAX_COST + b"0]")
    [message] = end.session.outgoing(end.now)
    frame = read_frame(message)
    assert isinstance(message, bytes)
    assert frame["tasks"][0]["payload"] == [0] * (MAX_COST + 1)
    end.stored(frame)
    assert call.result == ["ok"]


def test_long_tasks_go_in_frames_between_which_others_are_read(end: End) -> None:
    long, longest = b'"' + b"x" * 100_000 + b'"', b'"' + b"x" * 900_000 + b'"'
    calls = [end.enqueue(*"abcdefgh", payload=long), end.enqueue("i", "j", payload=longest), end.enqueue("k")]
    sizes = []
    for _ in range(10):
        for frame in end.sent():
            sizes.append((len(json.dumps(frame)) >> 19, len(ids(frame))))
            end.stored(frame)
    assert all(call.is_done for call in calls)
    assert [count for _, count in sizes] == [5, 3, 1, 1, 1]
    assert [size for size, _ in sizes] == [0, 0, 1, 1, 0]


@pytest.mark.parametrize("code", ["unavailable", "outcome_unknown", "repairing"])
def test_a_queue_that_is_refused_delays_no_other(end: End, code: str) -> None:
    bad = end.enqueue("a", queue="bad")
    pauses = []
    for n in range(4):
        end.refuse(end.only(), code)
        good = [end.enqueue(f"{n}.{i}", queue="good") for i in range(3)]
        end.enqueue(f"b{n}", queue="bad")
        frame = end.only()
        assert (frame["queue"], ids(frame)) == ("good", [f"{n}.{i}" for i in range(3)])
        end.stored(frame)
        assert [call.result for call in good] == [["ok"]] * 3
        assert end.sent() == []
        pauses.append(end.session.deadline() - end.now)
        end.pass_time(pauses[-1])
    assert pauses == pytest.approx([0.075, 0.15, 0.3, 0.6])  # an answer of another queue's makes none short
    frame = end.only()
    assert ids(frame) == ["a", "b0", "b1", "b2", "b3"]
    end.stored(frame)
    assert bad.result == ["ok"]
    end.enqueue("c", queue="bad")
    end.refuse(end.only(), code)
    assert end.session.deadline() - end.now == pytest.approx(0.075)


def test_requests_about_a_queue_that_is_refused_delay_no_others_and_keep_their_order(end: End) -> None:
    for verb in ("pause", "resume"):
        end.session.request(verb, {"queue": "bad"}, end.now + 9)
    frames = end.sent()
    for frame in reversed(frames):
        end.refuse(frame, "unavailable")
    end.session.request("queue", {"queue": "bad"}, end.now + 9)
    for verb, body in (("queue", {"queue": "good"}), ("queues", {})):
        end.session.request(verb, body, end.now + 9)
    end.enqueue("a", queue="bad")  # another kind of frame
    assert [(frame["type"], frame.get("queue")) for frame in end.sent()] == [
        ("queue", "good"),
        ("queues", None),
        ("enqueue", "bad"),
    ]
    assert end.session.deadline() - end.now == pytest.approx(0.075)
    end.now += 0.08
    end.session.request("counts", {"queue": "bad"}, end.now + 9)
    assert [frame["type"] for frame in end.sent()] == ["pause", "resume", "queue", "counts"]


def test_a_refused_queue_whose_answer_takes_long_takes_no_place_of_others(end: End) -> None:
    for n in range(MAX_APART + 5):
        end.enqueue("a", queue=f"bad{n}")
        end.refuse(end.only(), "unavailable")
    end.now += 1
    apart = end.sent()
    assert len(apart) == MAX_APART
    for n in range(MAX_APART + 5):
        end.enqueue("b", queue=f"bad{n}")  # each has one frame under way at most
    frames = []
    for n in range(3):
        end.enqueue(f"{n}", queue="good")
        frames += end.sent()
    assert [(frame["queue"], ids(frame)) for frame in frames] == [("good", ["0"]), ("good", ["1"])]
    end.stored(apart[0])
    last = f"bad{MAX_APART}"  # its turn comes when there is a place apart; `bad0` waits for one of the others
    assert [(frame["queue"], ids(frame)) for frame in end.sent()] == [(last, ["a", "b"])]
    end.stored(frames[0])
    assert [frame["queue"] for frame in end.sent()] == ["bad0"]
    end.disconnect()
    assert not end.session.under_way


@pytest.mark.parametrize("queue", [None, 5, ["q"], {}])
def test_a_request_whose_queue_is_no_name_is_sent_again_too(end: End, queue: Any) -> None:
    end.session.request("counts", {"queue": queue}, end.now + 9)
    end.refuse(end.only(), "unavailable")
    end.pass_time(1)
    assert end.only()["queue"] == queue


def test_queues_refused_long_ago_are_forgotten(end: End) -> None:
    for n in range(200):
        end.enqueue("a", queue=f"q{n}", timeout=0.01)
        end.refuse(end.sent()[-1], "unavailable")
        end.pass_time(1)
        end.sent()
    assert len(end.session.pauses._refusals) <= REMEMBERED_S + 1
    assert not end.session.pauses._until
    assert not end.session.pauses._ends
