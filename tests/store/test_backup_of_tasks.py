"""Whatever the protocol accepts of a task comes back from a backup, its payload byte for byte."""

from __future__ import annotations

from typing import Any

import orjson
import redis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fairq.errors import BadRequest
from fairq.model.checks import MAX_INLINE_BYTES, MAX_SPAN_MS, TENANT_PATTERN
from fairq.model.tasks import MAX_KEY_BYTES, MAX_NAME_BYTES, NewTask
from fairq.store import keys, library
from fairq.store.backup_lines import load
from fairq.store.records import pack_options

from .backups import check, dumped, reloaded

NOW_MS = 1_800_000_000_000
KEYS = st.sampled_from(("payload", '"payload":', ',"payload":', "payload_base64", "kind", "id", "é", "\u2028", ""))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1 << 63, (1 << 64) - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
UNREAD = st.binary(max_size=20).map(lambda some: some + b"\xff " * MAX_INLINE_BYTES) | JSON.map(  # stored as they come
    lambda json: b" \n" + orjson.dumps([json, "x" * MAX_INLINE_BYTES], option=orjson.OPT_INDENT_2) + b"\r "
)
SPANS = st.just(0) | st.integers(1, MAX_SPAN_MS)


def printable(most: int) -> st.SearchStrategy[str]:
    """Generate printable texts of so many bytes."""
    return st.text(max_size=most // 4).filter(str.isprintable)


@st.composite
def tasks(draw: st.DrawFn) -> NewTask:
    """Generate tasks that a server takes."""
    payload = draw(st.one_of(JSON.map(orjson.dumps), JSON.map(orjson.dumps), UNREAD))
    key = draw(st.just("") | printable(MAX_KEY_BYTES))
    task = NewTask(
        draw(st.from_regex(r"[A-Za-z0-9_-]{1,64}(\+[0-9a-f]{8}-[0-9]{1,16})?", fullmatch=True)), payload,
        delay_ms=draw(SPANS), expires_after_start_ms=draw(SPANS), max_attempts=draw(st.none() | st.integers(0, 1_000)),
        priority=draw(st.integers(0, 99)), dedupe_key=key, dedupe_period_ms=draw(SPANS) if key else 0,
        result_ttl_ms=draw(SPANS), retry_base_ms=draw(SPANS), retry_cap_ms=draw(SPANS), events=draw(st.booleans()),
        group=draw(printable(MAX_NAME_BYTES)), name=draw(printable(MAX_NAME_BYTES)),
        trace=draw(st.sampled_from(("", f"00-{'1' * 32}-{'2' * 16}-01"))),
    )  # fmt: skip
    try:
        task.check()
    except BadRequest:
        assume(False)
    return task


@settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(tenant=st.from_regex(TENANT_PATTERN, fullmatch=True), task=tasks())
def test_a_task_that_was_accepted_comes_back(redis_client: redis.Redis, tenant: str, task: NewTask) -> None:
    redis_client.flushdb()
    prefix = keys.queue_prefix("q")

    def call(verb: str, *words: Any) -> Any:
        return redis_client.fcall(library.function_name(verb), 1, prefix, NOW_MS, "", *words)

    redis_client.set(f"{prefix}:test", "1")  # the test owns the clock
    call("make_queue")
    assert call("enqueue", tenant, f"{tenant}/{task.id}", pack_options(task), task.payload) == [b"ok"]
    lines = dumped(redis_client)
    check(lines)
    assert sorted(reloaded(redis_client, lines)) == sorted(lines)
    (payload,) = (payload for line, payload in map(load, lines) if line["kind"] == "task")
    assert payload == task.payload
