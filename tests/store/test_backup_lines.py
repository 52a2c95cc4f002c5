"""What lines of a backup keep: all that is true of a queue, in walks through every kind of state."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest

from fairq.errors import BadRequest
from fairq.store.backup_check import Checking
from fairq.store.backup_file import Header, Writer, read_header, read_lines
from fairq.store.backup_lines import dump, load, read_number, read_record, tell_number, tell_record


def test_a_payload_stays_byte_for_byte() -> None:
    for payload in (
        b'{"a": 1.0, "payload":[1e3]}', b'"x\\u00e9"', b"\xff\x00", b"{", b"1\n", b"", b"123456789012345678901",
    ):  # fmt: skip
        text = dump({"kind": "task", "id": 'a,"payload":'}, payload)
        assert b"\n" not in text
        line, found = load(text)
        assert (found, line) == (payload, {"kind": "task", "id": 'a,"payload":'})


def test_a_record_that_lacks_fields_has_their_defaults_and_others_are_ignored() -> None:
    assert tell_record("MARK", read_record("MARK", {"unknown": 1, "lease": 5}))[0] == {"how": 0, "lease": 5}


@pytest.mark.parametrize("value", [0.0, -1.0, 0.5, 2.0**53, 2.0**64, -1e300, float("inf"), 7])
def test_a_number_of_any_size_can_be_written(value: float) -> None:
    assert read_number(orjson.loads(orjson.dumps(tell_number(value)))) == value


def written(lines: list[bytes]) -> bytes:
    """Write the file of a backup."""
    out = io.BytesIO()
    writer = Writer(out)
    writer.begin(Header(19, "2026-01-01", "0", "Valkey 9", 1))
    for line in lines:
        writer.add(line)
    writer.end()
    return out.getvalue()


def test_a_file_that_is_cut_changed_or_appended_to_is_found() -> None:
    whole = written([b'{"kind":"queue","queue":"q%d","made":"1 "}' % n for n in range(3_000)])
    first, *lines = read_lines(io.BytesIO(whole))
    assert read_header(first).data_version == 19
    assert len(lines) == 3_000
    changed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in (0, 2, len(whole) // 2, -7)]
    for bad in [*changed, whole[:-1], whole[:-30], whole[:200], whole + b"x", whole + whole, b"", b"PK" * 99]:
        with pytest.raises(BadRequest, match="cannot be used"):
            list(read_lines(io.BytesIO(bad)))


@pytest.mark.parametrize("version", [None, [], "x"])
def test_a_header_without_a_version_is_refused(version: Any) -> None:
    found = {"fairq_backup": 1, "data_version": version, "made_at": "", "fairq": "", "store": "", "nodes": 1}
    with pytest.raises(BadRequest, match="it has no header"):
        read_header(orjson.dumps(found))


@pytest.mark.parametrize(
    "line",
    [
        {"kind": "queue", "queue": "A}", "made": "1 "}, {"kind": "queue", "queue": "a"}, {"queue": "a"}, [], 1,
        {"kind": "task", "queue": "a", "id": 1}, {"kind": "done", "queue": "a", "id": "x", "how": 256},
        {"kind": "limits", "queue": "a", "id": "x", "limits": {"rate": []}},
        {"kind": "state", "queue": "a", "now": "x"},
        {"kind": "event", "queue": "a", "tenant": "x", "id": "1", "fields": {"a": 1}}, {"kind": "audit", "stream": "x"},
        {"kind": "kept", "queue": "a", "id": "x", "of": "rr", "tag": 1, "bytes": 1, "until": 1},
        {"kind": "unique", "queue": "a", "id": {"base64": "?"}, "until": 1, "value": "a"},
        {"kind": "slot", "queue": "a", "step": 10, "id": "1", "rows": [{"waits": [1]}]},
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_is_refused(line: Any) -> None:
    with pytest.raises(BadRequest, match="cannot be used"):
        Checking().add(orjson.dumps(line))
