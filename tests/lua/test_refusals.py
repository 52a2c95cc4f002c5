"""What each function refuses: `FAIRQ <code> <field>`, before it has written anything. Complete: see the last tests."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
import redis

from fairq.store import library

from .calls import START, VERBS, Queue, options, packed_link, packed_template, snapshot

TOO_MANY = [f"id-{n}" for n in range(501)]
NAMES = ("", "a b", "a:b", "a{b}", "a\n", "a/b", "\u00e4", "a" * 129)
SCHEDULES = ("", "A", "-a", "a:b", "a{b}", "a\n", "a/b", "a" * 64)
BAD_IDS = ("", "a\n", "a\0b", "a\x7f")
LIMITS = (0, -1, 501, 1.5, "nan", "inf", "", "many")
MOMENTS = ("", 0, -1, 1.5, "nan", "inf", "soon", 2**52 + 1)
TIMES = (-1, "nan", 2**52 + 1, "soon")
TIMING = struct.pack("<dBB", 60_000.0, 0, 0)
LINK = packed_link("x")
HOOKS = [f"{n:08x}" for n in range(65)]


def tasks(*packed: bytes) -> tuple[object, ...]:
    """The arguments of an enqueue: tasks with these options."""
    return ("ada", *(part for n, each in enumerate(packed) for part in (f"id-{n}", each, b"{}")))


def asked(**asked: Any) -> tuple[object, ...]:
    """The arguments of an enqueue: a good task, and one that asks for something."""
    return tasks(b"", options(**asked))


def scheduled(
    tenant: str = "ada", name: str = "n", at: object = START, misfire: object = 0, **task: Any
) -> list[object]:
    return [tenant, name, at, misfire, TIMING, packed_template(**task)]


def acked(*links: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments of an acknowledgement with these links."""
    return ("leased", 1, b"null", *(word for link in links for word in link))


Rows = dict[str, list[tuple[object, ...]]]  # `code field` -> the arguments that are refused so
IDS: Rows = {"bad_request ids": [(), tuple(TOO_MANY)]}
IDS_ONCE: Rows = {"bad_request ids": [(), tuple(TOO_MANY), ("a", "a")]}
WITNESSES = [-1, 0.5, "noon", "nan", 2**52 + 1]

REFUSED: dict[str, Rows] = {
    "enqueue": {
        "bad_request tenant": [(name, "a", b"", b"{}") for name in NAMES],
        "bad_request tasks": [("ada",), ("ada", "a", b""), (*tasks(b""), "b"), tasks(*[b""] * 501), ("ada", "covered")],
        "bad_request options": [
            tasks(b"", b"x"), tasks(b"", options(priority=1)[:-1]), asked(delay=-1), asked(start_at=float("nan")),
            asked(expires_in=2**52 + 1), asked(expires_at=float("inf")),
            asked(dedupe_key="k", dedupe_period=-1), asked(result_ttl=-1),
        ],
        "bad_request id": [("ada", id, b"", b"{}") for id in (*BAD_IDS, "x" * 256)],
        "bad_request priority": [asked(priority=100), asked(priority=255)],
        "bad_request group": [asked(group="a\n")],
        "bad_request replace": [
            asked(replace=1, priority=1), asked(replace=1, dedupe_key="k", batch="open"),
        ],
        "not_found batch": [asked(batch="none"), asked(batch="bobs")],
        "batch_closed batch": [asked(batch="closed"), asked(batch="complete")],
    },
    "claim": {
        "bad_request limit": [("w", limit) for limit in LIMITS if limit],
        "bad_request owed": [("w", 1, "", "", "", owed) for owed in (-1, 501, 1.5, "nan", "many")],
        "bad_request worker": [("w" * 256, 1)],
        "bad_request witness": [("w", 1, "", witness) for witness in WITNESSES],
        "bad_request slots": [("w", 1, "", "", slots) for slots in (-1, 0.5, 10**10, "nan", "inf", "many")],
    },
    "settle": {
        "bad_request action": [("eat", "a", 1), ("ack", "leased", 1, "", "eat", "a", 1), ("", "a", 1)],
        "bad_request sent": [("ack", "leased", 1, "", "sent", value) for value in ("", "soon", -1, 1.5)],
        "bad_request settlements": [
            (), ("ack", "a"), ("ack", "leased", 1, "", "nack", "b", 1, 0, ""), ("reject", "a", 1, ""),
            ("ack", "leased", 1), ("ack", "a", 1, "") * 501,
        ],
        "bad_request delay_ms": [
            *(("ack", "leased", 1, "", "nack", "a", 1, delay, "", "") for delay in TIMES),
            *(("ack", "leased", 1, "", "release", "a", 1, delay, "") for delay in TIMES),
        ],
    },
    "tick": {
        "bad_request limit": [(limit,) for limit in LIMITS],
        "bad_request witness": [(1, witness) for witness in WITNESSES],
    },
    "cancel": {"bad_request ids": [("",), ("", *TOO_MANY[:65]), ("waiting", "a", "a")]},
    "waiting_tasks": {
        "bad_request cursor": [
            ("ada", cursor, 0, "")
            for cursor in ("x", "1 0 0 0", "-1 0 0 0 ", "1.5 0 0 0 ", "1 102 z 0 ", f"1 0 0 {'9' * 23} ")
        ],
        "bad_request older_than_ms": [("ada", "", ms, "") for ms in TIMES],
    },
    "forget_tenants": {
        "bad_request cursor": [(cursor, 1, 0, "") for cursor in ("", "x", "-1", "9" * 23)],
        "bad_request count": [("0", count, 0, "") for count in (0, 201, 1.5, "nan", "", "many")],
        "bad_request for_ms": [("0", 1, ms, "") for ms in TIMES],
        "bad_request witness": [("0", 1, 0, witness) for witness in WITNESSES],
    },
    "reschedule": {
        "bad_request ids": [(0, 0), (0, 0, *TOO_MANY), (0, 0, "a", "a")],
        "bad_request start_at": [(ms, 0, "a") for ms in TIMES] + [(0, ms, "a") for ms in TIMES],
    },
    "set_weight": {
        "bad_request tenant": [(name, 1000) for name in NAMES],
        "stale_version if_version": [("ada", 2000, "0" * 12)],
        "bad_request weight": [("ada", weight) for weight in (0, -1, 1.5, 10_000_001, "nan", "inf", "", "heavy")],
    },
    "set_limits": {
        "bad_request tenant": [(name, "max_running", 1) for name in NAMES if name],
        "bad_request limits": [("ada",), ("ada", "max_running"), ("ada", "max_running", 1, "dead")],
        "bad_request max_running": [
            *(("ada", "dead", 1, "max_running", most) for most in (-2, 1.5, "nan", "inf", "", "many")),
            ("ada", "max_running", 1, "max_running", 2),
        ],
        "bad_request rate": [
            ("ada", "max_running", 1, "rate", rate) for rate in (-0.5, -2, "nan", "inf", "", "x")
        ],
        "bad_request guaranteed": [("ada", "guaranteed", 0.5), ("", "guaranteed", 1)],
        "bad_request stored_bytes": [("", "stored_bytes", -2)],
        "bad_request colour": [("ada", "max_running", 1, "colour", 1)],
    },
    "set_opening_hours": {
        "bad_request tenant": [(name, "daily", 1, START, "") for name in NAMES if name],
        "bad_request opening_hours": [("ada", "x" * 2049, 1, START, "")],
        "bad_request is_open": [("ada", "daily", is_open, START, "") for is_open in (2, "", "yes", -1)],
        "bad_request changes_at": [("ada", "daily", 1, at, "") for at in TIMES],
    },
    "set_paused": {
        "bad_request tenant": [(name, 1) for name in NAMES if name],
        "bad_request paused": [("ada", paused) for paused in (2, "", "yes", -1)],
    },
    "configure": {
        "bad_request lease_ms": [("max_attempts", 3, "lease_ms", ms) for ms in (99, 86_400_001, 150.5, "nan", "", "x")],
        "bad_request colour": [("lease_ms", 5000, "colour", 1)],
        "bad_request max_attempts": [("max_attempts",)],
        "bad_request now": [("now", 5000)],
    },
    "repair": {"bad_request number": [(number,) for number in (-1, 1.5, "nan", "x", 2**52 + 1)]},
    "replay": IDS,
    "purge": IDS,
    "open_batch": {
        "bad_request tenant": [(name, "new", 0, "", "", "") for name in NAMES],
        "bad_request id": [("ada", id, 0, "", "", "") for id in (*BAD_IDS, "x" * 230)],
        "bad_request max_running": [
            ("ada", "new", most, "", "", "") for most in (-1, 1.5, 1_000_001, "nan", "", "many")
        ],
        "bad_request name": [
            ("ada", "new", 0, "1", "1", "1", 0, *((name if n == at else "") for n in range(3)))
            for at in range(3)
            for name in ("a\nb", "x" * 65)
        ],
        "too_large payload": [
            ("ada", "new", 0, *(("x" * 65_536 if n == at else "") for n in range(3))) for at in range(3)
        ],
    },
    "close_batch": {"not_found batch": [("none",), ("",)]},
    "schedule": {
        "bad_request tenant": [tuple(scheduled(tenant=name)) for name in NAMES],
        "bad_request name": [tuple(scheduled(name=name)) for name in SCHEDULES],
        "bad_request next_at": [tuple(scheduled(at=at)) for at in MOMENTS],
        "bad_request misfire": [tuple(scheduled(misfire=misfire)) for misfire in (-1, 2, 0.5, "", "once")],
        "bad_request start_at": [tuple(scheduled(delay=1)), tuple(scheduled(start_at=START))],
        "bad_request batch": [tuple(scheduled(batch="open"))],
        "bad_request priority": [tuple(scheduled(priority=100))],
        "bad_request group": [tuple(scheduled(group="\x00"))],
        "bad_request replace": [tuple(scheduled(dedupe_key="k", replace=1))],
        "bad_request options": [tuple(scheduled(dedupe_key="k", dedupe_period=-1)), tuple(scheduled(expires_in=-1))],
        "too_large name": [tuple(scheduled(tenant="full"))],
        "bad_request app": [(*scheduled(), "x" * 129)],
    },
    "pause_schedule": {
        "bad_request next_at": [("ada", "n", b"", at) for at in MOMENTS[1:]],
    },
    "fire": {
        "bad_request fires": [(), ("ada/n", b""), ("ada/n", b"", START) * 101],
        "bad_request next_at": [("full/s0", b"", START, "ada/n", b"", at) for at in MOMENTS],
    },
    "settle_linked": {
        "bad_request tasks": [acked(), acked(LINK)[:-1], acked(*(packed_link(f"l-{n}") for n in range(501)))],
        "bad_request id": [acked(LINK, packed_link(id)) for id in BAD_IDS],
        "batch_closed batch": [acked(LINK, packed_link("y", batch="closed"))],
        "bad_request expires_at": [acked(LINK, packed_link("y", expires_at=1))],
        "bad_request options": [acked(LINK, packed_link("y", delay=-1))],
    },
    "add_webhook": {
        "bad_request id": [(id, "https://a/", "", 0, "") for id in ("", "nothex00", "0" * 7, "0" * 9)],
        "bad_request url": [(HOOKS[0], url, "", 0, "") for url in ("", "x" * 65_536)],
        "bad_request name": [(HOOKS[0], "https://a/", name, 0, "") for name in ("\n", "n" * 256)],
        "bad_request fan_out": [(HOOKS[0], "https://a/", "", fan_out, "") for fan_out in (-1, 2, 0.5, "", "yes")],
        "bad_request secrets": [(HOOKS[0], "https://a/", "", 0, "s" * 65_536)],
        "too_large url": [(HOOKS[64], "https://a/", "", 0, "")],
        "too_large fan_out": [(HOOKS[63], "https://a/", "", 1, "")],
    },
    "remove_webhook": {"bad_request id": [("",), ("nothex00",)]},
    "pause_webhook": {
        "bad_request id": [("", 1), ("nothex00", 1)],
        "bad_request paused": [(HOOKS[0], paused) for paused in (-1, 2, 0.5, "", "yes")],
    },
    "tenants": {"bad_request count": [("0", count) for count in LIMITS]},
    "tasks": IDS,
    "why": {"bad_request ids": [()]},
    "batches": IDS_ONCE,
    "batch_results": {
        "forbidden lease": [(id, lease, 0) for id, lease in (("none", 1), ("a", 1), ("leased", 2), ("leased", "x"))],
        "not_found id": [("leased", 1, 0)],
        "bad_request cursor": [("leased", 1, cursor) for cursor in ("", "x", -1, 1.5, "9" * 21)],
    },
    "list_batches": {
        "bad_request cursor": [("", "", cursor, 1) for cursor in ("", "x", "-1", "1.5", "9" * 21)],
        "bad_request count": [("", "", "0", count) for count in LIMITS],
    },
    "results": IDS_ONCE,
    "peek": {
        "bad_request count": [("ada", count) for count in LIMITS],
    },
    "oldest": {"bad_request count": [(count,) for count in LIMITS]},
    "dead": {
        "bad_request cursor": [
            ("", cursor, 1, "", "", 0, 0, "") for cursor in ("x", "1:1", "1:1:", "-1:1:a", "1:-1:a", ":1:a")
        ],
        "bad_request count": [("", "", count, "", "", 0, 0, "") for count in LIMITS],
        "bad_request older_than_ms": [("", "", 1, "", "", age, 0, "") for age in (*TIMES, 1.5, "")],
        "bad_request younger_than_ms": [("", "", 1, "", "", 0, age, "") for age in (*TIMES, 1.5, "")],
    },
    "events": {
        "bad_request after": [("ada", after, 1) for after in (*TIMES, 1.5, "")],
        "bad_request count": [("ada", 0, count) for count in LIMITS],
    },
    "add_queue": {
        "bad_request tenant": [("q", name, 1) for name in NAMES if name],
        "bad_request queue": [(name, "ada", 1) for name in SCHEDULES],
        "bad_request quota": [("q", "ada", quota) for quota in (-1, 1.5, "nan", "inf", "many", 1_000_001)],
        "bad_request partitions": [("q", "ada", 1, count) for count in (0, 65, 1.5, "nan", "many")],
        "quota_exceeded queues": [("q", "ada", 0)],
    },
    "history": {
        "bad_request step": [(step, -1, 1) for step in (0, 1, 11, "", "10.0", "x")],
        "bad_request last": [(10, last, 1) for last in (-2, 0.5, "nan", "", 2**52 + 1)],
        "bad_request count": [(10, -1, count) for count in (0, 241, 1.5, "nan", "")],
    },
    "forget_queue": {
        "bad_request for_ms": [(ms, 0, "", 1) for ms in TIMES],
        "bad_request made_at": [(0, ms, "", 1) for ms in TIMES],
        "bad_request witness": [(0, 0, witness, 1) for witness in WITNESSES],
        "bad_request delete": [(0, 0, "", delete) for delete in (-1, 2, "nan", "", "yes")],
    },
    "begin_turn": {"bad_request for_ms": [("change", ms) for ms in (0, 60_001, 1.5, "nan", "")]},
    "delete_queue": {"bad_request what": [(what,) for what in ("", 1, "all", "Any")]},
    "schedules": {
        "bad_request offset": [("", "", offset, 1) for offset in (-1, 1.5, "nan", "inf", "", "far")],
        "bad_request count": [("", "", 0, count) for count in LIMITS],
    },
    "due_schedules": {"bad_request count": [(count,) for count in (*LIMITS, 101)]},
}  # fmt: skip
CLAIM = ("w", 1, "", "", "", "")
REFUSED["enqueue_and_claim"] = {
    **{refusal: [(*CLAIM, *args) for args in rows] for refusal, rows in REFUSED["enqueue"].items()},
    **{
        refusal: [(*args, *CLAIM[len(args) :], *tasks(b"")) for args in rows]
        for refusal, rows in REFUSED["claim"].items()
    },
}
NOTHING_TO_REFUSE = {  # no arguments, or names that are known or not
    "queue_state", "webhooks", "dead_letter", "opening_hours", "permissions", "make_queue", "remove_queue",
    "begin_change", "end_change", "end_turn", "add_history", "drop_tenant", "limits", "unschedule", "declared",
}  # fmt: skip
# Tested elsewhere: tests' clock and random values; what another build has written; queues that begin or end.
ELSEWHERE = {
    "forbidden now", "bad_request random_values", "bad_request record", "unmade queue",
    "deleting queue",
    "repairing queue",
}  # fmt: skip


@pytest.fixture
def filled(queue: Queue) -> Queue:
    """A queue with something of each kind in it."""
    queue.enqueue("ada", "leased")
    queue.claim()
    queue.enqueue("ada", "a", "b")
    queue.open_batch("bobs", tenant="bob")
    for name in ("open", "closed", "complete"):
        queue.open_batch(name)
    queue.enqueue("ada", "in-closed", batch="closed")
    for name in ("closed", "complete"):
        queue.call("close_batch", name)
    return queue


@pytest.mark.parametrize("verb", REFUSED)
def test_what_is_refused_is_named_and_changes_nothing(filled: Queue, verb: str) -> None:
    if verb == "schedule":
        for n in range(1000):
            filled.call("schedule", *scheduled(tenant="full", name=f"s{n}"))
    if verb == "add_webhook":
        for n, id in enumerate(HOOKS[:64]):
            filled.call("add_webhook", id, "https://a/", "", int(n < 15), "")
    before = snapshot(filled)
    for refusal, rows in REFUSED[verb].items():
        for args in rows:
            with pytest.raises(redis.ResponseError, match=f"^FAIRQ {refusal}( |$)"):
                filled.call(verb, *args)
    assert snapshot(filled) == before


def test_every_function_is_in_the_table() -> None:
    assert set(REFUSED) | NOTHING_TO_REFUSE == VERBS


def test_every_refusal_of_the_library_is_in_the_table() -> None:
    text = library.source()
    found = {f"{code} {field}" for code, field in re.findall(r"refuse\('(\w+)', '(\w+)'\)", text)}
    found |= {f"bad_request {field}" for field in re.findall(r"check_\w+\([^()]+, '(\w+)'", text)}
    assert found - ELSEWHERE <= {refusal for rows in REFUSED.values() for refusal in rows}


def test_every_limit_that_a_function_takes_has_rows() -> None:
    """By the comment over each function, which says what it takes."""
    for verb, comment in re.findall(r"^-- (\w+)\(keys, argv\).*?\n((?:--.*\n)+)", library.source(), re.MULTILINE):
        rows = REFUSED.get(verb, {})
        argv = comment.partition("  out ")[0]
        for name in re.findall(r"(\w+)[^\d()]*\((?:of all: |tasks per job )?1\.\.500\)", argv):
            assert {"bad_request limit", "bad_request count"} & rows.keys(), (verb, name)
        if "at most 500" in argv:
            lists = {f"bad_request {name}" for name in ("ids", "tasks", "settlements")}
            assert lists & rows.keys(), verb
