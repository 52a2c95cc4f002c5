"""What is refused, with which code and field; what comes through unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import BadFrame, BadRequest, FairqError
from fairq.model.checks import check_name, check_task_id, check_tenant, check_weight
from fairq.model.queues import SETTINGS
from fairq.model.tasks import Lease, NewTask, Settlement
from fairq.wire import frames, terms
from fairq.wire.beside import encode
from fairq.wire.client_session import ClientSession
from fairq.wire.codec import CLIENT_TYPES, decode_client
from fairq.wire.decode import decode_server
from fairq.wire.server_session import ServerSession
from fairq.wire.strict_json import MAX_COST, MAX_DEPTH, cost_of, parse
from fairq.wire.verbs import VERBS
from tests.server.refusals import GOOD as GOOD_OF_VERBS
from tests.store.cases import case

TASK = {"id": "t-1", "payload": None}
ACK = {"action": "ack", "id": "t/t-1", "lease": 1}
LEASE = {"queue": "q", "id": "t/t-1", "lease": 1}
MiB = 1 << 20

GOOD: dict[str, dict[str, Any]] = {kind: {"ref": 1, **body} for kind, body in GOOD_OF_VERBS.items()}
GOOD |= {"ping": {}, "drain": {}}


def frame(kind: str, **changes: Any) -> str:
    """Write a good frame with some fields changed; `...` takes a field out."""
    body = {**GOOD[kind], **changes}
    return json.dumps({"type": kind, **{name: value for name, value in body.items() if value is not ...}})


def task(**changes: Any) -> str:
    """Write an enqueue of one changed task."""
    body = {**TASK, **changes}
    return frame("enqueue", tasks=[{name: value for name, value in body.items() if value is not ...}])


def settlement(**changes: Any) -> str:
    """Write a settle of one changed settlement."""
    body = {**ACK, **changes}
    return frame("settle", settlements=[{name: value for name, value in body.items() if value is not ...}])


def refusal(text: str) -> FairqError:
    """Decode what must be refused."""
    with pytest.raises(FairqError) as caught:
        decode_client(text)
    return caught.value


def test_every_verb_has_a_good_frame_that_is_taken() -> None:
    assert set(GOOD) == {kind.type for kind in VERBS}
    for kind in GOOD:
        assert decode_client(frame(kind)).type == kind


def raw(payload: str) -> str:
    """Write an enqueue around a payload's text, whatever it is."""
    return f'{{"type":"enqueue","ref":1,"queue":"q","tasks":[{{"id":"a","payload":{payload}}}]}}'


NOT_FRAMES = {
    "empty": "",
    "not JSON": "{",
    "a list": "[]",
    "a number": "5",
    "null": "null",
    "two objects": "{}{}",
    "trailing comma": '{"type":"ping",}',
    "NaN": raw("NaN"),
    "Infinity": '{"type":"set_weight","ref":1,"queue":"q","tenant":"t","weight":Infinity}',
    "beyond a double": raw("1e400"),
    "2^64": raw("18446744073709551616"),
    "under -2^63": raw("-9223372036854775809"),
    "5000 digits": raw("9" * 5000),
    "duplicate key": '{"type":"ping","type":"ping"}',
    "duplicate key, deep": raw('[{"k":{"x":1,"x":1}}]'),
    "duplicate key, escaped": raw('{"a":1,"\\u0061":1}'),
    "lone surrogate": '{"type":"revoke_token","ref":1,"id":"\\ud800"}',
    "byte order mark": '\ufeff{"type":"ping"}',
    "depth bomb": "[" * 30_000,
    "closed depth bomb": '{"a":' * 2_000 + "1" + "}" * 2_000,
}


def test_what_is_no_frame_is_refused_as_such() -> None:
    for name, text in NOT_FRAMES.items():
        with case(name):
            error = refusal(text)
            ref = re.match(r'\{"type":"\w+","ref":(\d+)', text)
            assert (error.code, error.ref) == ("bad_frame", int(ref[1]) if ref else None)


def test_a_bad_frame_tells_its_ref_where_that_can_be_read() -> None:
    for text, ref in [
        ('{"ref":7,"type":"queues","x":NaN}', 7),
        (' { "type" : "queues" , "ref" : 7 , "a":1,"a":2}', 7),
        ('{"type":"enqueue","ref":7,"tasks":[', 7),
        ('{"type":"enqueue","tasks":[{"payload":{"ref":5}}],"ref":7,"a":1,"a":2}', None),  # 5 is of somebody else
        ('{"ref":7.5,"x":NaN}', None),
        ('{"ref":-7,"x":NaN}', None),
        ('[{"ref":7}]', None),
    ]:
        with case(text, ref):
            with pytest.raises(BadFrame) as caught:
                decode_client(text)
            assert caught.value.ref == ref


def test_null_stands_for_the_default() -> None:
    for kind in sorted(GOOD):
        with case(kind):
            optional = [f.name for f in attrs.fields(CLIENT_TYPES[kind]) if f.default is not attrs.NOTHING]
            spared = {name: ... for name in optional}
            assert decode_client(frame(kind, **dict.fromkeys(optional))) == decode_client(frame(kind, **spared))


def test_null_stands_for_the_default_in_lists_too() -> None:
    options = dict.fromkeys(NewTask._fields[2:])
    assert decode_client(task(**options)).tasks == decode_client(frame("enqueue", tasks=[TASK])).tasks
    assert decode_client(settlement(delay_ms=None, error=None)).settlements == [Settlement("ack", "t/t-1", 1)]
    assert decode_client(settlement(result=None)).settlements == [Settlement("ack", "t/t-1", 1, result=b"null")]
    report = {"id": "t/t-1", "lease": 1, "fraction": 0.5}
    told = decode_client(frame("progress", reports=[{**report, "text": None}]))
    assert told == decode_client(frame("progress", reports=[report]))


BIG = "x" * (MiB - 1)  # with its quotes one byte too long
REFUSED: dict[str, tuple[str, str, str | None]] = {
    "no type": ('{"ref":1}', "unknown_verb", "type"),
    "unknown verb": ('{"type":"dance","ref":1}', "unknown_verb", "type"),
    "server's frame": ('{"type":"push","ref":1}', "unknown_verb", "type"),
    "verb that is no text": ('{"type":["ping"],"ref":1}', "unknown_verb", "type"),
    "missing field": (frame("enqueue", queue=...), "bad_request", "queue"),
    "missing ref": (frame("queues", ref=...), "bad_request", "ref"),
    "unknown field": (frame("enqueue", color="red"), "bad_request", "color"),
    "field of another verb": (frame("ping", ref=1), "bad_request", "ref"),
    "tenant in an enqueue": (frame("enqueue", tenant=5), "bad_request", "tenant"),
    "text for a whole number": (frame("credit", credit="5"), "bad_request", "credit"),
    "true for a whole number": (frame("credit", credit=True), "bad_request", "credit"),
    "fraction for a whole number": (frame("credit", credit=5.0), "bad_request", "credit"),
    "null for a whole number": (frame("credit", credit=None), "bad_request", "credit"),
    "number for text": (frame("tenants", queue=5), "bad_request", "queue"),
    "text for a number": (frame("set_weight", weight="1"), "bad_request", "weight"),
    "true for a number": (frame("set_weight", weight=True), "bad_request", "weight"),
    "text for a list": (frame("attach", queues="abc"), "bad_request", "queues"),
    "object for a list": (frame("enqueue", tasks={}), "bad_request", "tasks"),
    "number in a list of text": (frame("replay", ids=["a", 5]), "bad_request", "ids"),
    "list for an object": (frame("configure", settings=[]), "bad_request", "settings"),
    "number for text or null": (frame("pause", tenant=5), "bad_request", "tenant"),
    "ref as text": (frame("queues", ref="1"), "bad_request", "ref"),
    "ref as true": (frame("queues", ref=True), "bad_request", "ref"),
    "negative ref": (frame("queues", ref=-1), "bad_request", "ref"),
    "huge ref": (frame("queues", ref=1 << 53), "bad_request", "ref"),
    "empty batch of tasks": (frame("enqueue", tasks=[]), "bad_request", "tasks"),
    "empty batch of settlements": (frame("settle", settlements=[]), "bad_request", "settlements"),
    "empty batch of ids": (frame("tasks", ids=[]), "bad_request", "ids"),
    "501 tasks": (frame("enqueue", tasks=[TASK] * 501), "too_large", "tasks"),
    "501 settlements": (frame("settle", settlements=[ACK] * 501), "too_large", "settlements"),
    "501 ids": (frame("purge", ids=["a"] * 501), "too_large", "ids"),
    "501 leases": (frame("attach", leases=[LEASE] * 501), "too_large", "leases"),
    "lease that is text": (frame("attach", leases=["t-1"]), "bad_request", "leases"),
    "lease without number": (frame("extend", leases=[{"id": "t/t-1"}]), "bad_request", "lease"),
    "lease with more": (frame("extend", leases=[{"id": "t/a", "lease": 1, "x": 1}]), "bad_request", "x"),
    "lease with a bad id": (frame("extend", leases=[{"id": "{}", "lease": 1}]), "bad_request", "id"),
    "lease 0": (frame("attach", leases=[{**LEASE, "lease": 0}]), "bad_request", "lease"),
    "lease and attempt": (frame("attach", leases=[{**LEASE, "attempt": 1}]), "bad_request", "attempt"),
    "task that is text": (frame("enqueue", tasks=["t-1"]), "bad_request", "tasks"),
    "task without id": (task(id=...), "bad_request", "id"),
    "task without payload": (task(payload=...), "bad_request", "payload"),
    "task with more": (task(colour=1), "bad_request", "colour"),
    "urgent task": (task(priority=100), "bad_request", "priority"),
    "window without a key": (task(dedupe_period_ms=1), "bad_request", "dedupe_period_ms"),
    "id with a brace": (task(id="a{b}"), "bad_request", "id"),
    "id too long": (task(id="a" * 65), "bad_request", "id"),
    "id with a newline": (task(id="a\n"), "bad_request", "id"),
    "id not ASCII": (task(id="é"), "bad_request", "id"),
    "id that is a number": (task(id=7), "bad_request", "id"),
    "payload over 1 MiB": (task(payload=BIG), "too_large", "payload"),
    "delay as text": (task(delay_ms="5"), "bad_request", "delay_ms"),
    "delay as true": (task(delay_ms=True), "bad_request", "delay_ms"),
    "negative delay": (task(delay_ms=-1), "bad_request", "delay_ms"),
    "delay over 400 days": (task(delay_ms=400 * 86_400_000 + 1), "bad_request", "delay_ms"),
    "start beyond all time": (task(start_at_ms=(1 << 50) + 1), "bad_request", "start_at_ms"),
    "1001 attempts": (task(max_attempts=1001), "bad_request", "max_attempts"),
    "delay and start": (task(delay_ms=1, start_at_ms=1), "bad_request", "start_at_ms"),
    "two ends": (task(expires_in_ms=1, expires_at_ms=1), "bad_request", "expires_at_ms"),
    "two ends, one after the start": (
        task(expires_in_ms=1, expires_after_start_ms=1),
        "bad_request",
        "expires_after_start_ms",
    ),
    "a time and an end after the start": (
        task(expires_at_ms=1, expires_after_start_ms=1),
        "bad_request",
        "expires_after_start_ms",
    ),
    "start after the end": (task(start_at_ms=6, expires_at_ms=5), "bad_request", "expires_at_ms"),
    "start at the end": (task(start_at_ms=5, expires_at_ms=5), "bad_request", "expires_at_ms"),
    "delay past the end": (task(delay_ms=5, expires_in_ms=5), "bad_request", "expires_in_ms"),
    "settlement that is text": (frame("settle", settlements=["ack"]), "bad_request", "settlements"),
    "unknown action": (settlement(action="eat"), "bad_request", "action"),
    "the server's action": (settlement(action="reap"), "bad_request", "action"),
    "no action": (settlement(action=...), "bad_request", "action"),
    "settlement without lease": (settlement(lease=...), "bad_request", "lease"),
    "settlement of lease 0": (settlement(lease=0), "bad_request", "lease"),
    "lease beyond 2^53": (settlement(lease=1 << 53), "bad_request", "lease"),
    "lease as true": (settlement(lease=True), "bad_request", "lease"),
    "lease as text": (settlement(lease="1"), "bad_request", "lease"),
    "settlement by attempt": (settlement(attempt=1), "bad_request", "attempt"),
    "settlement with more": (settlement(colour=1), "bad_request", "colour"),
    "delay of nack as a fraction": (settlement(action="nack", delay_ms=1.5), "bad_request", "delay_ms"),
    "error too long": (settlement(action="nack", error="x" * 2049), "bad_request", "error"),
    "error as a number": (settlement(action="nack", error=5), "bad_request", "error"),
    "traceback of an ack": (settlement(traceback="frames"), "bad_request", "traceback"),
    "traceback of a postpone": (settlement(action="postpone", delay_ms=1, traceback=""), "bad_request", "traceback"),
    "traceback as a list": (settlement(action="nack", traceback=["frames"]), "bad_request", "traceback"),
    "traceback too long": (settlement(action="reject", traceback="x" * 8193), "too_large", "traceback"),
    "traceback with too many bytes": (settlement(action="nack", traceback="é" * 4097), "too_large", "traceback"),
}


def test_what_breaks_a_rule_is_refused_with_its_code_and_field() -> None:
    for name, (text, code, field) in REFUSED.items():
        with case(name):
            error = refusal(text)
            assert (error.code, error.field) == (code, field)
            ref = json.loads(text).get("ref")
            assert error.ref == (ref if type(ref) is int and 0 <= ref < 1 << 53 else None)
            assert len(error.message) <= 400


BAD_VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "empty name": (lambda: check_name("", "queue"), "queue"),
    "capital": (lambda: check_name("Emails", "queue"), "queue"),
    "leading dash": (lambda: check_name("-a", "queue"), "queue"),
    "brace": (lambda: check_name("a{b}", "queue"), "queue"),
    "newline": (lambda: check_name("a\n", "queue"), "queue"),
    "64 characters": (lambda: check_name("a" * 64, "queue"), "queue"),
    "empty tenant": (lambda: check_tenant(""), "tenant"),
    "slash in a tenant": (lambda: check_tenant("a/b"), "tenant"),
    "newline in a tenant": (lambda: check_tenant("a\n"), "tenant"),
    "tenant of 129 characters": (lambda: check_tenant("a" * 129), "tenant"),
    "tenant beyond ASCII": (lambda: check_tenant("\u00e9"), "tenant"),
    "no tenant": (lambda: check_tenant(None), "tenant"),
    "not text": (lambda: check_name(5, "queue"), "queue"),
    "not an id": (lambda: check_task_id("a b"), "id"),
    "weight 0": (lambda: check_weight(0), "weight"),
    "weight negative": (lambda: check_weight(-1), "weight"),
    "weight huge": (lambda: check_weight(10_001), "weight"),
    "weight tiny": (lambda: check_weight(0.0001), "weight"),
    "weight infinite": (lambda: check_weight(float("inf")), "weight"),
    "weight NaN": (lambda: check_weight(float("nan")), "weight"),
    "weight true": (lambda: check_weight(True), "weight"),
    "no settings": (lambda: SETTINGS.check({}, "settings"), "settings"),
    "unknown setting": (lambda: SETTINGS.check({"color": 1}, "settings"), "color"),
    "setting out of range": (lambda: SETTINGS.check({"lease_ms": 99}, "settings"), "lease_ms"),
    "setting true": (lambda: SETTINGS.check({"max_attempts": True}, "settings"), "max_attempts"),
    "unknown share": (lambda: SETTINGS.check({"share": "luck"}, "settings"), "share"),
}


def test_values_that_the_server_checks_are_refused_by_field() -> None:
    for name, (check, field) in BAD_VALUES.items():
        with case(name):
            with pytest.raises(BadRequest) as caught:
                check()
            assert caught.value.field == field


def test_optional_fields_of_tasks_and_settlements_come_through() -> None:
    [told] = decode_client(task(delay_ms=5, expires_in_ms=6, max_attempts=7)).tasks
    assert told == NewTask("t-1", b"null", delay_ms=5, expires_in_ms=6, max_attempts=7)
    [nack] = decode_client(settlement(action="nack", delay_ms=0, error="oh")).settlements
    assert nack == Settlement("nack", "t/t-1", 1, 0, "oh")
    assert decode_client(settlement(delay_ms=None)).settlements == [Settlement("ack", "t/t-1", 1)]


def test_deepest_frame_is_taken_and_one_level_more_refused() -> None:
    def nested(levels: int) -> str:
        return frame("enqueue", tasks=[{"id": "a", "payload": json.loads("[" * levels + "]" * levels)}])

    around = 3  # the frame, its tasks, the task
    assert decode_client(nested(MAX_DEPTH - around))
    assert refusal(nested(MAX_DEPTH - around + 1)).code == "bad_frame"


def test_spaces_and_escapes_are_no_fault() -> None:
    text = ' {"type" : "enqueue", "ref":1,"queue":"\\u0071","tasks":[{"id":"a","payload":{"\\u00e9":[1.0, 1E2]}}]}\n'
    assert decode_client(text).tasks == [NewTask("a", '{"é":[1.0,100.0]}'.encode())]


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
texts = st.text(max_size=20)
payloads = st.recursive(
    scalars | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(payloads)
def test_any_payload_arrives_as_the_value_that_was_sent(payload: Any) -> None:
    client = ClientSession()
    client.connected(0.0)
    client.receive(
        encode("welcome", {"role": "tenant", "server": "s", "session": "x", "max_batch": 9, "max_message_bytes": MiB}),
        0.0,
    )
    client.enqueue("q", [NewTask("t-1", orjson.dumps(payload))], 9.0)
    [text] = client.outgoing(0.0)
    [stored] = decode_client(text).tasks

    server = ServerSession(role=terms.Role.WORKER, state=terms.State.ATTACHED)
    server.push("q", 1000, [Lease("t-1", 70, 1, 5, "acme", 1, 0, 0, stored.payload)])
    [text] = server.outgoing(0.0)
    [pushed] = decode_server(text).tasks
    assert repr(pushed.payload) == repr(payload)  # tells 1 from 1.0 and 0.0 from -0.0


def decodes_or_refuses(text: str) -> None:
    """Decode a text; only a FairqError may come of it."""
    try:
        assert type(decode_client(text)) in VERBS
    except FairqError as refused:
        assert refused.ref is None or type(refused.ref) is int  # noqa: PT017


@given(st.text() | st.text(alphabet='{}[]":,\\ue0123456789nulltrufase.-+ '))
def test_arbitrary_text_is_decoded_or_refused(text: str) -> None:
    decodes_or_refuses(text)


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_frames_with_any_value_in_any_place_are_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    body = {"type": kind, **GOOD[kind]}
    place: Any = body
    while True:  # walk down to a random place
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not (isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans())):
            break
        place[key] = place[key].copy()
        place = place[key]
    place[key] = data.draw(payloads)
    decodes_or_refuses(json.dumps(body))


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_frames_cut_and_scrambled_are_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    text = frame(kind)
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 5))
    decodes_or_refuses(text[:at] + data.draw(st.text(alphabet='{}[]":,\\u0 9e-n', max_size=4)) + text[at + length :])


def test_what_a_server_must_not_say_is_refused() -> None:
    for text in ["", "5", "{}", "[]", '{"type":"reply"}', '{"type":"push","queue":"q"}', '{"type":[]}']:
        with case(text), pytest.raises(BadFrame):
            decode_server(text)


def test_clients_pass_over_frames_and_fields_that_they_do_not_know() -> None:
    assert decode_server('{"type":"party","hats":3}') is None
    assert decode_server('{"type":"error","code":"c","message":"m","mood":"sad"}') == frames.Error("c", "m")
    task = {
        "id": "a", "lease": 70, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1, "payload": [],
        "smell": "x",
    }  # fmt: skip
    push = decode_server(json.dumps({"type": "push", "queue": "q", "lease_ms": 5, "tasks": [task], "tone": 1}))
    assert push == frames.Push("q", 5, [frames.PushedTask("a", 70, 1, 5, "t", 1, [])])


def filled(value: str) -> str:
    """A frame with a value that does not belong there."""
    return f'{{"type":"tasks","ref":1,"queue":"q","ids":["a"],"more":{value}}}'


def test_what_would_take_long_to_read_is_not_read() -> None:
    zeros = MAX_COST - cost_of(filled("[0]"))
    error = refusal(filled("[0" + ",0" * zeros + "]"))
    assert (error.code, error.field) == ("bad_request", "more"), "it was read"
    error = refusal(filled("[0" + ",0" * (zeros + 1) + "]"))
    assert (error.code, error.ref) == ("too_large", 1)
    assert refusal(filled("[" * 100_000)).code == "too_large"
    assert refusal("[" * 100_000).ref is None
    assert refusal(filled('"' + "[{:,]" * 200_000 + '"')).code == "bad_request", "in a string they cost nothing"


def test_long_numbers_and_exponents_that_are_no_rounded_numbers_may_stand_in_long_texts() -> None:
    row = {"id": "018f3c1e-77aa-7bb0-8c1e-0123456789ab", "at_ns": 1_763_800_000_000_000_000, "p": "1e5", "q": 1e-30}
    tasks = [{"id": f"t{n}", "payload": [{**row, "card": "5" * 20}] * 100} for n in range(40)]
    assert len(decode_client(json.dumps({"type": "enqueue", "ref": 1, "queue": "q", "tasks": tasks})).tasks) == 40
    rounded = json.dumps({"v": [row] * 4_000, "w": [1 << 64]})
    with pytest.raises(FairqError):
        parse(rounded)


NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["a:b", '"', "\\", '\\"', ":,[{", "9" * 30, "5e1"]
)
MORE = (', "v": 1', ', "\\u0076": 1', ", 18446744073709551616", ', "z": -9223372036854775809')
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "é", ":", '"', "\\"]), inner),
    max_leaves=12,
)  # fmt: skip


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_any_way_to_write_json_is_read_alike(value: Any, ascii: bool, indent: int | None) -> None:
    text = json.dumps({"v": value}, ensure_ascii=ascii, indent=indent)
    assert parse(text) == {"v": value}


def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of pairs with different keys."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError
    return found


def parse_whole(digits: str) -> int:
    """Read a whole number that fits in 64 bits."""
    if not -(1 << 63) <= (number := int(digits)) < (1 << 64):
        raise ValueError
    return number


@given(JSON, st.booleans(), st.data())
def test_what_orjson_forgives_is_found_wherever_it_stands(value: Any, ascii: bool, data: st.DataObject) -> None:
    """A key twice, or a number too long, put in where a value ends; the standard library's parser is the judge."""
    text = json.dumps({"v": value, "w": [value]}, ensure_ascii=ascii)
    places = [n for n, char in enumerate(text) if char in "]}"]
    at = data.draw(st.sampled_from(places))
    more = data.draw(
        st.sampled_from([', "v": 1', ', "\\u0076": 1', ", 18446744073709551616", ', "z": -9223372036854775809'])
    )
    spoilt = text[:at] + more + text[at:]
    try:
        json.loads(spoilt, object_pairs_hook=refuse_duplicates, parse_int=parse_whole)
    except ValueError:
        with pytest.raises(FairqError):
            parse(spoilt)
    else:
        parse(spoilt)
