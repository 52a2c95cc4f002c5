"""Documents as tests: the pages of the protocol and the code say the same, both ways."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import attrs

from fairq import errors, tokens
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    MAX_BATCH,
    MAX_INLINE_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_WEIGHT,
    MIN_WEIGHT,
    NAME_PATTERN,
    TASK_ID_PATTERN,
    TENANT_PATTERN,
    WORKER_PATTERN,
)
from fairq.model.cron import check_timing, next_fire
from fairq.model.history import TenantSeries
from fairq.model.operator_views import TokenRow
from fairq.model.queues import SETTING_RANGES, SHARES, QueueSettings
from fairq.model.schedules import MAX_SCHEDULES, SCHEDULE_PATTERN
from fairq.model.tasks import MAX_LINKS, MAX_LINKS_BYTES, MAX_RESULT_BYTES, Link, ScheduledOptions
from fairq.wire import frames, terms
from fairq.wire import messages as wire
from fairq.wire.verbs import VERBS
from tests.wire.schemas import GIVEN, SENT

ROOT = Path(__file__).parents[1]
PAGES = Path(wire.__file__).parent
PROTOCOL = "\n".join((PAGES / name).read_text(encoding="utf-8") for name in ("PROTOCOL.md", "VERBS.md"))
DOCS = ROOT / "fairq" / "docs"
REQUIRED = object()
WORDS: dict[Any, str] = {int: "whole number", float: "number", str: "text", bool: "boolean", dict: "object", Any: "any"}

# the parts of frames and replies that have tables of their own: the words before the table -> class
INPUTS = {name.replace("_", " "): kind for name, kind in GIVEN.items() if kind is not Link}
OUTPUTS = {
    name.replace("_", " "): kind for name, kind in SENT.items() if kind not in (frames.Fence, TenantSeries, TokenRow)
} | {"token record": TokenRow}
NAMES = {cls: words for words, cls in INPUTS.items()} | {frames.PushedTask: "pushed task", Link: "link"}


class Row(NamedTuple):
    """One row of a table of fields."""

    type: str
    required: bool
    default: Any


def table_after(text: str, mark: str) -> list[dict[str, str]]:
    """Read the first table after a mark: a dict per row, by heading. A row *options* is those of a schedule's tasks."""
    lines = text[text.index(mark) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    heads, _, *body = rows
    found = [dict(zip(heads, row, strict=True)) for row in body]
    return [row for each in found for row in (options_of_tasks() if each.get("field") == "*options*" else [each])]


def options_of_tasks() -> list[dict[str, str]]:
    """Read the rows of the options that a schedule has for its tasks."""
    names = {f"`{each.name}`" for each in attrs.fields(ScheduledOptions)}
    return [row for row in tables_after(PROTOCOL, "Each *task*") if row["field"] in names]


def tables_after(text: str, mark: str) -> list[dict[str, str]]:
    """Read the tables after each of these marks as one."""
    return [row for at in re.finditer(re.escape(mark), text) for row in table_after(text[at.start() :], mark)]


def section(heading: str) -> str:
    """Return the text of one `###` section, up to the next heading."""
    found = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##|\Z)", PROTOCOL, re.M | re.S)
    assert found, f"no page has a section {heading}"
    return found[1]


def word(kind: Any) -> str:
    """Say a type as PROTOCOL.md does."""
    if get_origin(kind) in (UnionType, Union):
        return word(next(arg for arg in get_args(kind) if arg is not type(None)))
    if get_origin(kind) in (list, tuple):
        return f"list of {word(get_args(kind)[0])}"
    if kind in NAMES:
        return NAMES[kind]
    if attrs.has(kind):
        return "object"
    return WORDS.get(get_origin(kind) or kind, "text")


def default_of(field: attrs.Attribute[Any]) -> Any:
    """Return what a field is when it is not given, or REQUIRED."""
    default: Any = field.default
    if default is attrs.NOTHING:
        return REQUIRED
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]


def fields_in_code(cls: type[Any]) -> dict[str, Row]:
    """Describe the fields of an attrs class or named tuple."""
    hints = get_type_hints(cls)
    if attrs.has(cls):
        defaults = {each.name: default_of(each) for each in attrs.fields(cls)}
    else:
        defaults = {name: cls._field_defaults.get(name, REQUIRED) for name in cls._fields}
    return {
        name: Row("bytes" if hints[name] is bytes else word(hints[name]), default is REQUIRED, default)
        for name, default in defaults.items()
    }


def fields_in_document(rows: list[dict[str, str]]) -> dict[str, Row]:
    """Read a table of fields the same way."""
    found: dict[str, Row] = {}
    for row in rows:
        required = row.get("required", "yes") == "yes"
        default = REQUIRED if required else json.loads(row.get("default", "null").strip("`"))
        found[row["field"].strip("`")] = Row(row["type"], required, default)
    return found


def rows_of(frame: str, side: str) -> list[dict[str, str]]:
    """Read the table of a frame's own fields."""
    text = section(f"`{frame}` ({side})")
    mark = "| field | type | required |"
    return table_after(text, mark) if mark in text else []


def described(frame: type[Any], side: str) -> dict[str, Row]:
    """Return a frame's own fields as its table has them."""
    return fields_in_document(rows_of(frame.type, side))


def test_every_client_frame_is_described_field_by_field() -> None:
    """What each request has, `ref` and `queue`, is said once."""
    without = re.search(r"has `queue`, a queue's name, but (.*?)\. A worker's", PROTOCOL, re.DOTALL)
    assert without
    of_no_queue = set(re.findall(r"`(\w+)`", without[1]))
    for frame in VERBS:
        said = {} if frame.type == "ping" else {"ref": Row("whole number", True, REQUIRED)}
        said |= {"queue": Row("text", True, REQUIRED)} if said and frame.type not in of_no_queue else {}
        assert said | described(frame, "client") == fields_in_code(frame), frame.type


def test_every_server_frame_is_described_field_by_field() -> None:
    for frame in frames.SERVER_FRAMES:
        in_document = {name: row[:2] for name, row in described(frame, "server").items()}
        assert in_document == {name: row[:2] for name, row in fields_in_code(frame).items()}, frame.type


def test_there_are_no_sections_of_frames_that_do_not_exist() -> None:
    sections = set(re.findall(r"^### `(\w+)` \((client|server)\)$", PROTOCOL, re.M))
    assert sections == {(frame.type, "client") for frame in VERBS} | {
        (frame.type, "server") for frame in frames.SERVER_FRAMES
    }


def test_every_part_of_a_client_frame_is_described_field_by_field() -> None:
    in_code = {words: fields_in_code(cls) for words, cls in INPUTS.items()}
    in_code["task"] |= {"payload": Row("any", True, REQUIRED), "tenant": Row("text", False, None)}  # as JSON text
    links = in_code["settlement"]["links"]._replace(default=[])
    in_code["settlement"] |= {"result": Row("any", False, None), "links": links}
    for words, fields in in_code.items():
        assert fields_in_document(tables_after(PROTOCOL, f"Each *{words}*")) == fields, words
    assert f"at most {MAX_LINKS}, with payloads of at most {MAX_LINKS_BYTES >> 20} MiB together" in PROTOCOL


def test_every_part_of_an_answer_is_described_field_by_field() -> None:
    for words, cls in OUTPUTS.items():
        rows = table_after(PROTOCOL, f"*{words}*") + tables_after(PROTOCOL, f"Each *{words}* may also have")
        in_document = fields_in_document(rows)
        in_code = {name: row.type for name, row in fields_in_code(cls).items()}
        assert {name: row.type for name, row in in_document.items()} == in_code, words


def test_queue_settings_are_described_with_their_ranges_and_defaults() -> None:
    rows = {row["setting"].strip("`"): row for row in table_after(PROTOCOL, "| setting |")}
    defaults = attrs.asdict(QueueSettings())
    assert {name: row["default"] for name, row in rows.items()} == {
        name: str(value) for name, value in defaults.items()
    }
    ranges = {name: tuple(map(int, row["range"].split(" to "))) for name, row in rows.items() if name in SETTING_RANGES}
    assert ranges == SETTING_RANGES
    assert rows["queue_weight"]["range"] == f"{MIN_WEIGHT} to {MAX_WEIGHT:g}"
    assert set(re.findall(r"`(\w+)`", rows["share"]["range"])) == set(SHARES)


def codes() -> list[dict[str, str]]:
    """Read the tables of errors: those on the wire, and those of SDKs."""
    return tables_after(PROTOCOL, "| code | when | final |")


def test_error_codes_are_those_of_the_code() -> None:
    described = {row["code"].strip("`") for row in codes()}
    assert described == set(errors.BY_CODE) | {errors.FairqError.code}


def test_codes_that_are_not_final_are_those_that_clients_send_again() -> None:
    assert {row["code"].strip("`") for row in codes() if row["final"].startswith("no")} == {
        code for code, kind in errors.BY_CODE.items() if issubclass(kind, errors.Retryable)
    }


def test_grid_of_roles_and_states_is_that_of_the_code() -> None:
    described = {}
    for row in tables_after(PROTOCOL, "| frame | tenant |"):
        yes = {name for name, cell in row.items() if cell == "yes"}
        roles = {role for role in terms.Role if role.value in yes}
        described[row["frame"].strip("`")] = (roles, {state for state in terms.State if state.value in yes})
    in_code = {frame.type: (set(verb.roles), set(verb.states)) for frame, verb in VERBS.items()}
    assert described == in_code


def test_limits_are_those_of_the_code() -> None:
    from fairq.server.engine.net.connection import MAX_PRODUCER_REQUESTS, MAX_REQUESTS, MAX_TENANT_REQUESTS
    from fairq.server.engine.net.socket_connection import MAX_HELD_BYTES, MAX_UNREAD_BYTES, MAX_UNSENT_BYTES
    from fairq.server.engine.net.tenant_load import MAX_TENANT_REQUESTS_HERE
    from fairq.wire.strict_json import BRACKET_COST, MAX_COST, MAX_DEPTH

    limits = {row["limit"]: row["value"] for row in tables_after(PROTOCOL, "| limit | value |")}
    assert f"the most tasks, settlements, leases or ids in a frame: {MAX_BATCH} |" in PROTOCOL
    assert limits["requests without an answer, per connection"] == str(MAX_REQUESTS)
    assert limits["requests without an answer, over all connections of a tenant"] == str(MAX_TENANT_REQUESTS)
    assert limits["requests without an answer, on a producer's connection"] == (
        f"{MAX_TENANT_REQUESTS_HERE} of each tenant, {MAX_PRODUCER_REQUESTS} in all"
    )
    assert limits["the same, on a producer's connection"] == (
        f"{terms.MAX_TENANT_WAITING} of each tenant, {terms.MAX_PRODUCER_WAITING} in all"
    )
    assert limits["tasks, batches and feeds that requests wait for, per connection"] == str(terms.MAX_WAITING)
    unread = limits["replies that a client has not read, before the server stops reading from it"]
    assert unread == f"{MAX_UNREAD_BYTES >> 20} MiB"
    assert f"at most {MAX_RESULT_BYTES >> 10} KiB, as the shortest JSON text;" in PROTOCOL
    assert f"1 to {terms.MAX_QUEUES} queue names" in PROTOCOL
    assert limits["schedules of a tenant in a queue"] == str(MAX_SCHEDULES)
    assert f"A payload of more than {MAX_INLINE_BYTES:,} bytes".replace(",", " ") in PROTOCOL
    assert limits["a payload beside a frame, as sent"] == (
        "`max_payload_bytes` of the welcome "
        f"(default {DEFAULT_PAYLOAD_BYTES >> 20} MiB, at most {MAX_PAYLOAD_BYTES >> 20} MiB)"
    )
    held = "requests without an answer of more than 64 KiB each, per connection, before the server stops reading"
    assert limits[held] == f"{MAX_HELD_BYTES >> 20} MiB in all"
    assert f"SHOULD accept {terms.MAX_SERVER_MESSAGE_BYTES >> 20} MiB" in limits["a server's message"]
    counted = limits[f"commas, colons and strings of a frame, each array and object counting as {BRACKET_COST}"]
    assert counted.startswith(f"{MAX_COST:,};".replace(",", " "))
    assert limits["pushed tasks that a worker has not read, before pushes pause"] == f"{MAX_UNSENT_BYTES >> 20} MiB"
    for words in (
        f"more than {MAX_DEPTH} levels",
        f"every {terms.HEARTBEAT_S:g} s",
        f"nothing for {terms.TIMEOUT_S:g} s",
    ):
        assert words in PROTOCOL
    for pattern in (NAME_PATTERN, TENANT_PATTERN, TASK_ID_PATTERN, WORKER_PATTERN, SCHEDULE_PATTERN):
        assert f"`{pattern.pattern.removesuffix(chr(92) + 'Z')}`" in PROTOCOL


def days_of(cron: str) -> str:
    """List the days of October 2026 on which a schedule fires, in UTC; or `refused`."""
    begin, end = (round(datetime(2026, month, 1, tzinfo=UTC).timestamp() * 1000) for month in (10, 11))
    at, found = begin - 1, []
    try:
        timing = check_timing(cron, "UTC", 0)
        while (at := next_fire(timing, at, 0)) < end:
            found.append(datetime.fromtimestamp(at / 1000, UTC).day)
    except errors.BadRequest:
        return "refused"
    return "1-31" if found == list(range(1, 32)) else ", ".join(map(str, found))


def test_the_days_of_cron_are_those_on_which_schedules_fire() -> None:
    rows = table_after(PROTOCOL, "| cron | days in October 2026")
    head = next(name for name in rows[0] if name.startswith("days"))
    assert len(rows) == 20
    assert {row["cron"]: row[head] for row in rows} == {row["cron"]: days_of(row["cron"].strip("`")) for row in rows}
    assert datetime(2026, 10, 1, tzinfo=UTC).strftime("%A") == "Thursday"
    for name in re.findall(r"`(@\w+)`", PROTOCOL):
        check_timing(name, "", 0)


def test_the_test_token_has_the_documented_form_check_and_hash() -> None:
    token, hashed = re.findall(r"^(fq_\S+)\n([0-9a-f]{64})$", PROTOCOL, re.M)[0]
    body, _, check = token.rpartition("_")
    assert f"CRC-32 of `{body}`" in PROTOCOL
    assert f"{zlib.crc32(body.encode()):08x}" == check
    assert hashlib.sha256(token.encode()).hexdigest() == hashed == tokens.hash_token(token)
    assert tokens.token_id(token) == "example"
    assert tokens.token_id(token[:-1] + "0") is None


def test_the_lineage_is_complete_and_its_tests_are_there() -> None:
    rows = table_after((DOCS / "lineage.md").read_text(), "| row |")
    counts = {"S1": 7, "S2": 5, "S3": 9, "S4": 9, "S5": 7}
    assert [row["row"] for row in rows] == [f"{system}.{n}" for system in counts for n in range(1, counts[system] + 1)]
    for row in rows:
        path, _, name = row["test"].strip("`").partition("::")
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), row["test"]


def test_floors_are_those_of_the_code() -> None:
    from fairq.server.engine import long_poll, queues
    from fairq.server.engine.net import questions, server_slots, worker_registry
    from fairq.server.engine.timers import ticker

    rows = table_after((DOCS / "recovery.md").read_text(), "| lost | found by")
    after = {row["lost"]: row["after, at most"] for row in rows}
    assert after["the news of ready tasks"].startswith(
        f"{ticker.FLOOR_S:g} s; {ticker.IDLE_FLOORS * ticker.FLOOR_S:g} s"
    )
    assert after["the claim of a server that was woken for a task, but died or was full"] == f"{queues.LATER_MS} ms"
    waiting = next(value for lost, value in after.items() if "a request waits for" in lost)
    assert waiting == f"{long_poll.POLL_S:g} s"
    listed = next(value for lost, value in after.items() if "its workers" in lost)
    assert listed == f"{worker_registry._KEEP_MS / 1000:g} s"
    holder = next(value for lost, value in after.items() if "which worker holds" in lost)
    assert holder == f"{questions.ANSWER_S:g} s; then the name is left out"
    slots = next(value for lost, value in after.items() if "how many slots" in lost)
    assert slots.startswith(f"{worker_registry._WRITE_S:g} s; a server that is silent for {server_slots._FORGET_S:g} s")


def refusals_at_start() -> list[str]:
    """What the guide quotes of messages that a server ends with when it cannot start."""
    text = (DOCS / "deploy.md").read_text().partition("## What a refusal at start means")[2].partition("\n## ")[0]
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    return [quoted for cell in cells for quoted in re.findall(r"`([^`]+)`", cell)]


def test_refusals_at_start_are_those_of_the_code() -> None:
    code = "".join(path.read_text() for path in (ROOT / "fairq").rglob("*.py"))
    for quoted in refusals_at_start():
        said_by_the_store = quoted.startswith("NOAUTH")
        parts = re.split(r"\.\.\.|: |, |setting \w+ |port \d+ on|\b[A-Z]\b|\b[A-Z]{4,}\b", quoted)
        assert said_by_the_store or max(parts, key=len).strip() in code, quoted


def test_what_the_page_for_contributors_names_is_there() -> None:
    page = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    paths = set(re.findall(r"`((?:fairq|lua|tests|loadtest|deploy|\.ci)/[\w./-]*)`", page))
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
