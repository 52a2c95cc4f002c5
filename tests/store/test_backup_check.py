"""Every line of a backup is checked before one is written: a bad one is named, a good one comes back unchanged."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import orjson
import pytest
import redis
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairq.errors import BadRequest, TooLarge
from fairq.store import keys
from fairq.store.backup_kinds import KINDS
from fairq.store.backup_lines import FORMATS, dump, load
from fairq.store.partitions import places_of
from fairq.store.placing import Placing
from tests.lua.calls import Queue
from tests.lua.keyspace import Keyspace
from tests.lua.rebuilt import drain, repair

from .backups import check, dumped, good_lines, reloaded, whole

Line = dict[str, Any]
NOW = 1_795_700_000_000  # by the stores' clock, after all that the lines tell
EXAMPLES = int(os.environ.get("FAIRQ_FUZZ_EXAMPLES", "150"))
FAULT = re.compile(r"the backup cannot be used: line (\d+)( \(\w+\))?: .+", re.DOTALL)


def find(kind: str, **having: Any) -> int:
    """Return the place of the first line of a kind with these fields."""
    return next(
        n for n, line in enumerate(map(orjson.loads, good_lines()))
        if line["kind"] == kind and having.items() <= line.items()
    )  # fmt: skip


def refused(lines: list[bytes]) -> tuple[int, str | None, str]:
    """Return the line, the field and the code by which a backup is refused."""
    with pytest.raises((BadRequest, TooLarge)) as raised:
        check(lines)
    found = FAULT.fullmatch(raised.value.message)
    assert found, raised.value.message
    return int(found[1]), raised.value.field, raised.value.code


def fault_of(lines: list[bytes]) -> BadRequest | TooLarge | None:
    """Return why a backup is refused; None if it is not."""
    try:
        check(lines)
    except (BadRequest, TooLarge) as error:
        return error
    return None


def test_the_lines_are_of_every_kind_and_good() -> None:
    assert {load(line)[0]["kind"] for line in good_lines()} == KINDS.keys()
    check(list(good_lines()))


def test_a_tenant_lives_in_its_own_partition_and_no_task_beside_the_partitions() -> None:
    lines, places = list(good_lines()), places_of("many", 2)
    at = find("tenant", queue=places[0])
    line, payload = load(lines[at])
    elsewhere = [*lines[:at], dump(line | {"queue": places[1]}, payload), *lines[at + 1 :]]
    assert refused(elsewhere)[1:] == ("account.name", "bad_request")
    state, _ = load(lines[find("state", queue=places[0])])
    assert refused([*lines, dump(state | {"queue": "many"})])[1:] == ("id", "bad_request")
    assert refused([*lines, dump(state | {"queue": places_of("many", 3)[0]})])[1:] == ("queue", "bad_request")
    assert refused([*lines, dump(state | {"queue": "many/2.x"})])[1:] == ("queue", "bad_request")
    without = [line for line in lines if load(line)[0]["kind"] != "partitions"]
    assert refused(without)[1:] == ("queue", "bad_request")


def test_good_lines_come_back_as_they_were(redis_client: redis.Redis) -> None:
    assert in_order(reloaded(redis_client, good_lines())) == in_order(good_lines())


BAD: list[tuple[str, str, Any]] = [  # kind, field (dots between levels), value
    ("task", "id", "ada/a\n"), ("task", "id", "ada/" + "x" * 60_000), ("task", "id", "zzz"), ("task", "id", ""),
    ("task", "id", "a{b}/t1"), ("task", "id", 7), ("task", "id", None), ("task", "id", {"base64": "YWRhL2E="}),
    ("task", "queue", "Q"), ("task", "queue", ""), ("task", "queue", None), ("task", "queue", "q\n"),
    ("task", "tenant", "a{b}"), ("task", "tenant", "bob"), ("task", "tenant", ""), ("task", "type", 9),
    ("task", "max_attempts", -5), ("task", "max_attempts", 1e300), ("task", "max_attempts", 1_001),
    ("task", "max_attempts", "3"), ("task", "max_attempts", 3.0), ("task", "max_attempts", True),
    ("task", "start_at", "soon"), ("task", "start_at", "5"), ("task", "start_at", -1), ("task", "start_at", 2**63),
    ("task", "enqueued_at", -1), ("task", "enqueued_at", "nan"), ("task", "enqueued_at", "inf"),
    ("task", "features", 65_535), ("task", "features", 8), ("task", "extra", 65_536), ("task", "name", "a\nb"),
    ("task", "name", "x" * 129), ("task", "trace", "x"), ("task", "unknown", 1), ("task", "options", {"priority": 100}),
    ("task", "delayed_until", "5"), ("task", "kind", "tasks"), ("task", "kind", None), ("task", "kind", ["task"]),
    ("done", "how", 1.5), ("done", "how", 1), ("done", "how", 254), ("done", "lease", -1), ("done", "lease", 1 << 53),
    ("tenant", "account.weight", 0), ("tenant", "account.weight", 10_000_001), ("tenant", "account.name", "a b"),
    ("tenant", "account.leased", -1), ("tenant", "account.base", "inf"), ("tenant", "account", None),
    ("tenant", "details.tag", 77), ("tenant", "details", None), ("tenant", "tag", 1 << 32),
    ("tenant", "account.books.bytes", -1), ("tenant", "account.books.remembered", -1),
    ("tenant", "account.books", None), ("tenant", "account.books", []), ("tenant", "details.unknown", 1),
    ("state", "settings.lease_ms", 99), ("state", "settings.max_attempts", "3"), ("state", "settings.share", "time"),
    ("state", "stage", 2), ("state", "enqueued", -1), ("state", "now", "x"), ("state", "done", 0.5),
    ("state", "last_lease", 1 << 53), ("state", "classes", "abc"), ("state", "blocked", 32),
    ("state", "more", {"base64": "AA=="}), ("state", "clock", (1 << 53) + 1),
    ("limits", "limits.max_running", -2), ("limits", "limits.rate", "1"), ("limits", "id", "a b"),
    ("limits", "limits", []),
    ("opening_hours", "text", "w1"), ("opening_hours", "text", ""), ("opening_hours", "is_open", 2),
    ("webhook", "url", "ftp://a.example/"), ("webhook", "secrets", "s"), ("webhook", "id", "0F75CB1C"),
    ("batch", "id", "b1"), ("batch", "state", 3), ("batch", "tenant", "zoe"), ("batch", "total", -1),
    ("batch", "max_running", 1_000_001), ("schedule", "id", "From"), ("schedule", "timing.cron", "0 3 * *"),
    ("schedule", "timing.zone", "Mars/Base"), ("schedule", "timing", None), ("schedule", "misfire", 2),
    ("template", "options.max_attempts", 1_001), ("template", "options.dedupe_period", -1), ("template", "id", "s1"),
    ("template", "options.batch", "b"), ("template", "options.priority", 100), ("fire", "at", "nan"),
    ("fire", "at", "-inf"), ("declared", "at", "inf"), ("schedule", "app", "a\nb"), ("schedule", "app", "x" * 129),
    ("opening_change", "at", "inf"), ("cancelling", "id", "b1"), ("result", "until", "5"), ("result", "value", "{"),
    ("result", "value", '{"a":1,"a":2}'), ("result", "id", "id4"), ("unique", "id", "k"), ("unique", "until", -1),
    ("unique", "value", "id16"), ("kept", "of", "x"), ("kept", "tag", -1), ("kept", "bytes", 1 << 32),
    ("kept", "id", "a\n"), ("batch_result", "batch", "b1"), ("batch_result", "id", "dan/id4"),
    ("batch_result", "until", -1), ("batch_result", "order", 0.5),
    ("event", "id", "1-0"), ("event", "id", "0-0"), ("event", "tenant", "*"), ("event", "fields.id", "id7"),
    ("event", "fields.event", "x"), ("event", "fields.at", 5), ("event", "fields", None), ("slot", "step", 11),
    ("slot", "id", "01"), ("slot", "number", 2), ("slot", "rows", {}), ("slot", "enqueued", 1 << 32),
    ("queue", "queue", "A}"), ("queue", "made", "x ada"), ("queue", "made", "1"), ("queue", "made", "1 a b"),
    ("token", "id", "X"), ("token", "value.role", "king"), ("token", "value.hash", "0"),
    ("token", "value.tenant", "a b"),
    ("token", "value.id", "aaaabbbb"), ("token", "value", None), ("token_use", "value", "5"), ("token_use", "id", "!"),
    ("audit", "stream", "x"), ("audit", "id", "1"), ("audit", "fields.change", "{"), ("audit", "fields.change", "1"),
    ("audit", "fields", []), ("callback", "id", "b1-death"),
]  # fmt: skip


def change(line: Line, path: str, value: Any) -> None:
    """Set a field, at any level."""
    *way, name = path.split(".")
    for each in way:
        line = line[each]
    line[name] = value


@pytest.mark.parametrize(("kind", "path", "value"), BAD)
def test_a_bad_field_is_refused_by_its_line_and_name(kind: str, path: str, value: Any) -> None:
    lines = list(good_lines())
    at = find(kind, queue="mail") if kind == "state" and path.startswith("settings") else find(kind)
    line, payload = load(lines[at])
    change(line, path, value)
    lines[at] = dump(line, payload)
    number, field, code = refused(lines)
    assert number == at + 2
    assert field is not None
    assert path.startswith(field) or field.startswith(path) or (path, field) in LED_BY, field
    assert code in ("bad_request", "too_large")


LED_BY = {  # a bad value that another field shows
    ("features", "options"), ("number", "id"),
}  # fmt: skip


def test_a_field_that_must_be_there_is_missed() -> None:
    for kind, name in (
        ("task", "id"), ("task", "tenant"), ("task", "type"), ("tenant", "details"), ("unique", "value"),
        ("fire", "at"), ("slot", "rows"), ("schedule", "timing"), ("task", "queue"), ("event", "fields"),
        ("callback", "id"),
    ):  # fmt: skip
        lines = list(good_lines())
        line, payload = load(lines[at := find(kind)])
        del line[name]
        lines[at] = dump(line, payload)
        assert refused(lines)[:2] == (at + 2, name)


def test_the_books_of_an_account_are_missed() -> None:
    lines = list(good_lines())
    line, _ = load(lines[at := find("tenant")])
    del line["account"]["books"]
    lines[at] = orjson.dumps(line)
    assert refused(lines)[:2] == (at + 2, "account.books")


def task_with(payload: bytes, form: bytes = b',"payload":%s}') -> bytes:
    """Write the line of a task whose payload stands so."""
    line, _ = load(good_lines()[find("task")])
    return orjson.dumps(line)[:-1] + form.replace(b"%s", payload)


def spaced(text: bytes) -> bytes:
    """Write a line with spaces between its tokens, but for those of its payload."""
    head, mark, payload = text.partition(b'"payload":')
    return re.sub(rb'("|\d|[\]}])([,:])(?=["\d{\[-])', rb"\1\2 ", head) + (mark and b'"payload" : ') + payload


BIG = 70_000  # bytes of a payload that servers store unread
TEXTS: list[tuple[bytes, bytes]] = [  # the text of a line, and the payload that it has
    (task_with(b'{"a":1.0,"payload":[1e3]}'), b'{"a":1.0,"payload":[1e3]}'),
    (task_with(b'", \\"payload\\": "'), b'", \\"payload\\": "'),
    (task_with(b"[1]", b', "payload": %s}'), b"[1]"),
    (task_with(b"[1]", b' ,\t"payload" :\t%s }'), b"[1]"),
    (task_with(b"[1]", b',"payload":%s} \r'), b"[1]"),
    (task_with(b"[1]", b',"payload_base64":"WzFd"}'), b"[1]"),
    (task_with(b' "%s"' % (b"x" * BIG)), b' "%s"' % (b"x" * BIG)),
    (task_with(b"", b',"payload_base64":"%s"}' % base64.b64encode(b"\xff" * BIG)), b"\xff" * BIG),
    (task_with(b"123456789012345678901.5"), b"123456789012345678901.5"),
    (task_with(b"null"), b"null"),
]


@pytest.mark.parametrize(("text", "payload"), TEXTS, ids=range(len(TEXTS)))
def test_a_payload_is_read_wherever_json_has_spaces(redis_client: redis.Redis, text: bytes, payload: bytes) -> None:
    lines = list(good_lines())
    for form in (text, spaced(text) if len(text) < BIG else text):
        lines[find("task")] = form
        check(lines)
        (found,) = [
            logged for logged in map(load, reloaded(redis_client, lines)) if logged[0].get("id") == load(form)[0]["id"]
        ][:1]
        assert found[1] == payload


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (task_with(b"", b"}"), "payload"), (task_with(b"", b',"payload":}'), "payload"),
        (task_with(b"", b',"payload_base64":""}'), "payload"), (task_with(b"{"), "payload"),
        (task_with(b'{"a":1,"a":2}'), "payload"), (task_with(b"NaN"), "payload"), (task_with(b"1e999"), "payload"),
        (task_with(b"[" * 300 + b"]" * 300), "payload"), (task_with(b"[" * 200_000), "payload"),
        (task_with(b"\xff"), "payload"), (task_with(b"1", b',"payload":%s,"name":"x"}'), "payload"),
        (task_with(b"1", b',"payload":%s'), "payload"), (task_with(b"1", b',"payload":2,"payload":%s}'), "payload"),
        (task_with(b"1", b',"payload_base64":"?","payload":%s}'), "payload_base64"),
        (task_with(b"", b',"payload_base64":"?"}'), "payload_base64"),
        (task_with(b"", b',"payload_base64":7}'), "payload_base64"),
        (task_with(b"", b',"payload_base64":"/w=="}'), "payload"),
        (task_with(b"12345678901234567890123"), "payload"),
        (task_with(b"1", b',"name":"x","payload":%s}'), "line"), (b'{"payload":1,"kind":"task"}', "payload"),
        (b"\xef\xbb\xbf" + task_with(b"1"), "line"), (b"", "line"), (b" ", "line"), (b"[]", "line"), (b"1", "line"),
        (b"{}", "kind"), (b"\xff", "line"), (b'{"kind":"done",', "line"), (b"[" * 100_000, "line"),
        (task_with(b"1")[:-40], "line"), (b'{"kind":"done","queue":"mail","id":"ada/x","how":NaN,"lease":0}', "line"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_line_is_refused(text: bytes, field: str) -> None:
    lines = list(good_lines())
    lines[at := find("task")] = text
    assert refused(lines)[:2] == (at + 2, field)


def test_a_line_may_come_twice_but_not_with_other_content() -> None:
    lines = list(good_lines())
    check([*lines, lines[find("task")], lines[find("tenant")]])
    line, _ = load(lines[find("task")])
    assert refused([*lines, dump(line, b"2")])[:2] == (len(lines) + 2, "id")
    done = orjson.dumps({"kind": "done", "queue": line["queue"], "id": line["id"], "how": 0, "lease": 0})
    assert refused([*lines, done])[:2] == (len(lines) + 2, "id")
    assert refused([*lines, lines[find("event")]])[:2] == (len(lines) + 2, "id")


@pytest.mark.parametrize(
    ("kind", "having", "by", "field"),
    [
        ("state", {"queue": "mail"}, "tenant", "queue"), ("tenant", {"queue": "emails"}, "task", "tenant"),
        ("schedule", {"queue": "mail", "tenant": "ada"}, "template", "id"), ("token", {}, "token_use", "id"),
        ("opening_hours", {}, "opening_change", "id"), ("batch", {"id": "dan/b1"}, "cancelling", "id"),
        ("batch", {"id": "ada/b2"}, "batch_result", "batch"),
        ("task", {"id": "bob/id16"}, "unique", "value"), ("fire", {"id": "dan/s1"}, "schedule", "id"),
        ("template", {"id": "dan/s1"}, "schedule", "id"),
    ],
)  # fmt: skip
def test_what_a_line_refers_to_must_be_there(kind: str, having: Line, by: str, field: str) -> None:
    lines = list(good_lines())
    del lines[find(kind, **having)]
    number, name, _ = refused(lines)
    assert (load(lines[number - 2])[0]["kind"], name) == (by, field) or (name == field and kind in ("state", "tenant"))


def test_lines_may_stand_in_any_order() -> None:
    streams = ("event", "audit")
    lines = sorted(good_lines(), key=lambda line: load(line)[0]["kind"] not in streams)
    check([*lines[:8], *reversed(lines[8:])])


VALUES = st.sampled_from([
    -1, 0, 1, 2, 255, 256, 65_536, 1 << 31, 1 << 32, 1 << 53, 1 << 63, 0.5, -0.5, 1e300, 5.0, "", "x", "5", "a\nb",
    "inf", "-inf", "nan", "é", "ada/x", "dan", "a{b}", "\x00", "x" * 300, "x" * 70_000, None, True, [], {},
    {"base64": "AA=="}, {"base64": "?"}, [[1, 1]], {"a": 1}, "0 3 * * *", 1735689681150,
])  # fmt: skip
VALUES |= st.integers(-1 << 63, (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)


def paths(part: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the ways to all fields of a line."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [path for name, value in items for path in ((*way, name), *paths(value, (*way, name)))]


def mutate_field(draw: Callable[[Any], Any], text: bytes) -> bytes:
    line, payload = load(text)
    *way, name = draw(st.sampled_from(paths(line)))
    found: Any = line
    for each in way:
        found = found[each]
    match draw(st.sampled_from(("set", "drop", "add"))):
        case "set":
            found[name] = draw(VALUES)
        case "drop":
            del found[name]
        case _ if isinstance(found, dict):
            found[draw(st.text(max_size=9) | st.sampled_from(("payload", "more", "name", "tag", "options")))] = draw(
                VALUES
            )
    return dump(line, payload)


def mutate_bytes(draw: Callable[[Any], Any], text: bytes) -> bytes:
    at, size = draw(st.integers(0, len(text))), draw(st.integers(0, 3))
    some = st.binary(max_size=4) | st.sampled_from(
        (b" ", b",", b'"', b"\r", b"\\u0041", b"1", b"}", b'"payload":', b":")
    )
    added: bytes = draw(some)
    return (text[:at] + added + text[at + size :]).replace(b"\n", b"")


def mutate_payload(draw: Callable[[Any], Any], text: bytes) -> bytes:
    line, _ = load(text)
    return dump(line, draw(st.binary(max_size=40) | st.sampled_from((b'{"payload":1}', b" 1 ", b"1" * 30, b"[" * 300))))


def mutate_spaces(draw: Callable[[Any], Any], text: bytes) -> bytes:
    return spaced(text)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_changed_line_is_refused_or_comes_back_as_it_is(redis_client: redis.Redis, data: st.DataObject) -> None:
    lines = list(good_lines())
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(lines) - 1))
        change_line = data.draw(
            st.sampled_from((mutate_field, mutate_field, mutate_bytes, mutate_payload, mutate_spaces))
        )
        try:
            lines[at] = change_line(data.draw, lines[at])
        except BadRequest:  # an earlier change has made it unreadable
            continue
    if error := fault_of(lines):
        found = FAULT.fullmatch(error.message)
        event("refused")
        assert found, error.message
        assert 2 <= int(found[1]) <= len(lines) + 1
        assert error.field
        return
    event("taken")
    assert in_order(reloaded(redis_client, lines)) == in_order([dump(*whole(line)) for line in lines])
    for line, _ in map(load, lines):
        if line["kind"] == "state":
            queue = Queue(redis_client, keys.queue_prefix(line["queue"]), now=NOW)
            assert repair(queue)
            assert set(drain(queue)) <= set(Keyspace(queue).records) | set(Keyspace(queue).marks)
    placing = Placing.of({"mail": 3, "many": 1})
    check(lines, placing)
    check(reloaded(redis_client, lines, placing))  # what the check takes can be placed


def in_order(lines: Sequence[bytes]) -> list[Any]:
    """Read lines, in an order that says nothing, each once."""
    return [json for json, _ in groupby(sorted(map(as_json, lines), key=orjson.dumps))]


def as_json(text: bytes) -> Any:
    """Read a line so that equal lines are equal: a whole number may be written as 5 or 5.0, fields in any order."""
    line, payload = load(text)
    return [orjson.loads(orjson.dumps(whole_numbers(line), option=orjson.OPT_SORT_KEYS)), repr(payload)]


def whole_numbers(part: Any) -> Any:
    """Write whole numbers without a point."""
    if isinstance(part, dict):
        return {name: whole_numbers(value) for name, value in part.items()}
    if isinstance(part, list):
        return [whole_numbers(value) for value in part]
    return int(part) if isinstance(part, float) and abs(part) < 1 << 53 and part.is_integer() else part


def test_a_queue_that_is_being_deleted_is_left_out(redis_client: redis.Redis) -> None:
    reloaded(redis_client, good_lines())
    key = keys.queue_prefix("mail") + ":queue"
    packed: Any = redis_client.get(key)
    state, _ = FORMATS["QUEUE"].unpack(packed)
    redis_client.set(key, FORMATS["QUEUE"].pack({**state, "stage": 2}))
    lines = dumped(redis_client)
    check(lines)
    kinds = {load(line)[0]["kind"] for line in lines if load(line)[0].get("queue") == "mail"}
    assert kinds == {"queue"}
