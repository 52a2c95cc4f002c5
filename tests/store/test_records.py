"""The packed formats: what Python packs Lua reads, and what Lua packs Python reads."""

from __future__ import annotations

import struct

import orjson
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairq.model.checks import MAX_SPAN_MS, MAX_TIME_MS, TENANT_PATTERN
from fairq.model.schedules import Timing
from fairq.model.tasks import NewTask
from fairq.store import keys, library
from fairq.store.records import pack_options, pack_template, pack_timing, unpack_leases, unpack_schedule

NOW_MS = 1_800_000_000_000
FIRST_LEASE = (NOW_MS - 1_735_689_600_000) * 32  # by that time
NAMES = st.from_regex(TENANT_PATTERN, fullmatch=True)
SPANS = st.integers(0, MAX_SPAN_MS)
SOME_SPANS = st.none() | st.integers(1, MAX_SPAN_MS)
TIMES = st.one_of(st.just(0), st.integers(1, MAX_TIME_MS))


@st.composite
def tasks(draw: st.DrawFn) -> NewTask:
    """Tasks that may start now, before their end."""
    payload = draw(st.binary(max_size=300))
    start_at_ms = draw(st.one_of(st.just(0), st.integers(1, NOW_MS)))
    expires_in_ms = draw(SOME_SPANS)
    expires_at_ms = None if expires_in_ms else draw(st.none() | st.integers(NOW_MS + 1, MAX_TIME_MS))
    return NewTask(
        id=draw(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)),
        payload=payload,
        start_at_ms=start_at_ms,
        expires_in_ms=expires_in_ms,
        expires_at_ms=expires_at_ms,
        max_attempts=draw(st.none() | st.integers(0, 1_000)),
        name=draw(st.text(st.characters(exclude_categories=["C"]), max_size=30)),
    )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(tenant=NAMES, task=tasks())
def test_a_task_comes_back_from_lua_as_it_was_given(redis_client: redis.Redis, tenant: str, task: NewTask) -> None:
    prefix = keys.queue_prefix("q")
    redis_client.flushdb()
    redis_client.set(f"{prefix}:test", "1")  # the test owns the clock
    arguments = (tenant, task.id, pack_options(task), task.payload)
    redis_client.fcall(library.function_name("make_queue"), 1, prefix, NOW_MS, "")
    outcome = redis_client.fcall(library.function_name("enqueue"), 1, prefix, NOW_MS, "", *arguments)
    assert outcome == [b"ok"]
    random_values = struct.pack("<64d", *[0.5] * 64)
    (lease,) = unpack_leases(
        redis_client.fcall(library.function_name("claim"), 1, prefix, NOW_MS, random_values, "w", 1)
    )
    expires_at_ms = NOW_MS + task.expires_in_ms if task.expires_in_ms else task.expires_at_ms or 0
    attempts = 25 if task.max_attempts is None else task.max_attempts
    assert lease == (
        task.id, FIRST_LEASE, 1, attempts, tenant, NOW_MS, task.start_at_ms, expires_at_ms, task.payload,
        False, task.name, "", task.trace, 0, False,
    )  # fmt: skip


@given(task=tasks(), priority=st.integers(0, 99), key=st.text(max_size=20), period=SPANS, wait=SOME_SPANS)
def test_a_schedules_task_is_read_as_it_was_packed(
    task: NewTask, priority: int, key: str, period: int, wait: int | None
) -> None:
    asked = {"priority": priority, "dedupe_key": key, "dedupe_period_ms": period, "result_ttl_ms": period}
    asked |= {"events": bool(priority % 2), "retry_base_ms": wait}
    plain = {"expires_in_ms": task.expires_in_ms, "max_attempts": task.max_attempts, "expires_after_start_ms": wait}
    timing = Timing("0 3 * * *", "UTC")
    schedule = {"paused": 0, "misfire": 1, "next_at": NOW_MS, "last_fired_at": 0, "timing": pack_timing(timing)}
    head = library.formats()["SCHEDULE"].pack(schedule)
    for options in ({}, plain, asked, plain | asked):
        packed = pack_template(NewTask("", b'"any"', **options))
        state = unpack_schedule((b"ada/nightly", head, packed))
        assert (state.tenant, state.name, state.misfire, state.timing) == ("ada", "nightly", "once", timing)
        assert {name: getattr(state, name) for name in options} == options
        assert orjson.dumps(state.payload) == b'"any"'
