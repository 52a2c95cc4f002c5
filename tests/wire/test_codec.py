"""What is refused, with which code and field; what comes through unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairq.errors import BadFrame, BadRequest, FairqError
from fairq.model import rules
from fairq.model.tasks import ACTION, ACTIONS, Lease, NewTask, Settlement
from fairq.wire import frames, terms
from fairq.wire.client_session import ClientSession
from fairq.wire.codec import CLIENT_TYPES, decode_client
from fairq.wire.decode import decode_server
from fairq.wire.frames import Push, PushedTask
from fairq.wire.raw_payloads import to_message
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
GOOD["ping"] = {}


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


VECTORS = json.loads((Path(frames.__file__).parent / "vectors.json").read_text(encoding="utf-8"))


def test_messages_of_the_vectors_are_taken_or_refused_as_they_say() -> None:
    for vector in VECTORS:
        message = vector["message"].encode() if vector.get("binary") else vector["message"]
        with case(vector["is"]):
            if vector["code"] is None:
                decode_client(message)
                continue
            error = refusal(message)
            assert (error.code, error.field, error.ref) == (vector["code"], vector.get("field"), vector.get("ref"))
            assert len(error.message) <= 400


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
    found = decode_client(frame("progress", reports=[{**report, "text": None}]))
    assert found == decode_client(frame("progress", reports=[report]))


LONG: dict[str, tuple[str, str, str | None]] = {
    "5000 digits": (raw("9" * 5000), "bad_frame", None),
    "depth bomb": ("[" * 30_000, "bad_frame", None),
    "closed depth bomb": ('{"a":' * 2_000 + "1" + "}" * 2_000, "bad_frame", None),
    "traceback with too many bytes": (settlement(action="nack", traceback="é" * 4097), "too_large", "traceback"),
}


def test_what_is_too_long_for_the_vectors_is_refused_too() -> None:
    for name, (text, code, field) in LONG.items():
        with case(name):
            error = refusal(text)
            assert (error.code, error.field) == (code, field)


def test_optional_fields_of_tasks_and_settlements_come_through() -> None:
    [found] = decode_client(task(delay_ms=5, expires_in_ms=6, max_attempts=7)).tasks
    assert found == NewTask("t-1", b"null", delay_ms=5, expires_in_ms=6, max_attempts=7)
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
        to_message(
            {
                "type": "welcome",
                "role": "tenant",
                "server": "s",
                "session": "x",
                "max_batch": 9,
                "max_message_bytes": MiB,
            }
        ),
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


def check_decoding(text: str) -> None:
    """Decode a text; only a FairqError may come of it."""
    try:
        assert type(decode_client(text)) in VERBS
    except FairqError as refused:
        assert refused.ref is None or type(refused.ref) is int  # noqa: PT017


@given(st.text() | st.text(alphabet='{}[]":,\\ue0123456789nulltrufase.-+ '))
def test_arbitrary_text_is_decoded_or_refused(text: str) -> None:
    check_decoding(text)


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
    check_decoding(json.dumps(body))


@given(st.sampled_from(sorted(GOOD)), st.data())
def test_frames_cut_and_scrambled_are_decoded_or_refused(kind: str, data: st.DataObject) -> None:
    text = frame(kind)
    at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 5))
    check_decoding(text[:at] + data.draw(st.text(alphabet='{}[]":,\\u0 9e-n', max_size=4)) + text[at + length :])


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
    spoilt = text[:at] + data.draw(st.sampled_from(MORE)) + text[at:]
    try:
        json.loads(spoilt, object_pairs_hook=refuse_duplicates, parse_int=parse_whole)
    except ValueError:
        with pytest.raises(FairqError):
            parse(spoilt)
    else:
        parse(spoilt)


_BAD = {
    "action": [*ACTION.bad, None, 1, ["ack"]],
    "id": [*rules.FULL_ID.bad, None, 1, ["t/t-1"]],
    "lease": [*rules.LEASE.bad, None, True, 1.0, "1"],
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, some in _BAD.items() for bad in some])
def test_one_bad_settlement_among_plain_ones_is_refused(name: str, bad: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        decode_client(frame("settle", settlements=[ACK, {**ACK, name: bad}]))
    assert refused.value.field == name


def test_plain_settlements_are_read_alike_beside_others_and_alone() -> None:
    others = [{**ACK, "result": {}}, {**ACK, "action": "nack", "error": "x"}]
    plain = [{**ACK, "action": action, "lease": n} for n, action in enumerate(ACTIONS, 1)]
    alone = decode_client(frame("settle", settlements=plain)).settlements
    assert alone == [Settlement(action, "t/t-1", n) for n, action in enumerate(ACTIONS, 1)]
    assert decode_client(frame("settle", settlements=plain + others)).settlements[: len(plain)] == alone


_PUSHED = {"id": "t/a", "lease": 1, "attempt": 1, "max_attempts": 5, "tenant": "t", "enqueued_at_ms": 1, "payload": 1}


def _pushed(*tasks: dict[str, Any]) -> list[PushedTask]:
    frame: Push = decode_server(json.dumps({"type": "push", "queue": "q", "lease_ms": 9, "tasks": tasks}))
    return frame.tasks


def test_plain_pushed_tasks_are_read_alike_beside_others_and_alone() -> None:
    plain = [{**_PUSHED, "lease": n} for n in range(1, 4)]
    alone = _pushed(*plain)
    assert alone == [PushedTask("t/a", n, 1, 5, "t", 1, 1) for n in range(1, 4)]
    assert _pushed(*plain, {**_PUSHED, "name": "x", "later": 1}) == [*alone, alone[0]._replace(name="x")]


@pytest.mark.parametrize("bad", [{"id": 1}, {"lease": 1.5}, {"lease": "1"}, {"attempt": None}, {"name": 1}])
def test_a_push_with_a_task_of_other_types_is_no_frame(bad: dict[str, Any]) -> None:
    with pytest.raises(BadFrame):
        _pushed(_PUSHED, {**_PUSHED, **bad})
