"""What the verbs refuse, as data: per verb a body that is taken, and the values that break the rule of each field.

A row puts one value into the good body of its verb. `place` is a field of the frame, or `<field>.<part>` of the last
thing in a list (or of an object), so that all before it were good. Wrong types, missing and unknown fields have no
rows: they follow from the types of the frames.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

from fairq.model.batches import MAX_CALLBACK_BYTES, MAX_RUNNING
from fairq.model.checks import (
    DEFAULT_PAYLOAD_BYTES,
    MAX_BATCH,
    MAX_ERROR_CHARS,
    MAX_INLINE_BYTES,
    MAX_SPAN_MS,
    MAX_TIME_MS,
)
from fairq.model.events import MAX_EVENT_ID
from fairq.model.history import MAX_NAMED
from fairq.model.limits import LIMIT_RANGES
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS
from fairq.model.queues import SETTING_RANGES
from fairq.model.tasks import MAX_RESULT_BYTES, SPECIAL_PLACES
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS

TENANT, WORKER, OPERATOR, PRODUCER = Role.TENANT, Role.WORKER, Role.OPERATOR, Role.PRODUCER
VIEWER = Role.VIEWER
REQUESTS = {frame.type: frame for frame, verb in VERBS.items() if verb.reply is not None}
OF_TENANTS = {verb for verb, frame in REQUESTS.items() if TENANT in VERBS[frame].roles}
OF_OPERATORS = {verb for verb, frame in REQUESTS.items() if OPERATOR in VERBS[frame].roles}

SECRET = "whsec_" + "c2Vj" * 8
LEASED = 123_456_789  # stands for the number of the one lease that there is
# What there is when these are sent: see `World` in test_refusals.py.
GOOD: dict[str, dict[str, Any]] = {
    "enqueue": {"queue": "q", "tasks": [{"id": "new-1", "payload": 1}, {"id": "new-2", "payload": 1}]},
    "tasks": {"queue": "q", "ids": ["ready"]},
    "cancel": {"queue": "q", "ids": ["ready"]},
    "cancel_all": {"queue": "q", "dry_run": True},
    "reschedule": {"queue": "q", "ids": ["delayed"]},
    "peek": {"queue": "q"},
    "why": {"queue": "q", "id": "ready"},
    "report": {"queue": "q"},
    "history": {"queue": "q", "tenants": ["ada"]},
    "wait_tasks": {"queue": "q", "ids": ["ready"]},
    "open_batch": {"queue": "q", "id": "new"},
    "batch": {"queue": "q", "id": "open"},
    "batches": {"queue": "q", "state": "open"},
    "close_batch": {"queue": "q", "id": "open"},
    "cancel_batch": {"queue": "q", "id": "open"},
    "dead": {"queue": "q"},
    "dead_letter": {"queue": "q", "id": "dead"},
    "replay": {"queue": "q", "ids": ["dead"]},
    "purge": {"queue": "q", "ids": ["dead"]},
    "schedule": {"queue": "q", "name": "nightly", "payload": 2, "cron": "0 4 * * *"},
    "pause_schedule": {"queue": "q", "name": "nightly"},
    "resume_schedule": {"queue": "q", "name": "nightly"},
    "schedules": {"queue": "q", "name": "nightly"},
    "unschedule": {"queue": "q", "name": "nightly"},
    "add_webhook": {"queue": "q", "url": "https://a.example/in", "has_fan_out": True, "secrets": [SECRET]},
    "pause_webhook": {"queue": "q", "url": "https://a.example/in"},
    "resume_webhook": {"queue": "q", "url": "https://a.example/in"},
    "webhooks": {"queue": "q"},
    "remove_webhook": {"queue": "q", "url": "https://a.example/in"},
    "enqueue_from": {"queue": "q", "leases": [{"queue": "q", "id": "ada/leased", "lease": LEASED}] * 2, "tasks": [
        {"id": "made-1", "payload": 1}, {"id": "made-2", "payload": 1}]},
    "attach": {"worker": "other", "queues": ["q"], "credit": 0, "leases": [
        {"queue": "q", "id": "ada/leased", "lease": LEASED}, {"queue": "q", "id": "ada/none", "lease": 1}]},
    "credit": {"credit": 1},
    "progress": {"queue": "q", "reports": [
        {"id": "ada/leased", "lease": LEASED, "fraction": 0.5}, {"id": "ada/none", "lease": 1, "fraction": 1}]},
    "extend": {"queue": "q", "leases": [{"id": "ada/leased", "lease": LEASED}, {"id": "ada/none", "lease": 1}]},
    "settle": {"queue": "q", "settlements": [
        {"action": "nack", "id": "ada/none", "lease": 1}, {"action": "ack", "id": "ada/leased", "lease": LEASED}]},
    "idle": {},
    "queues": {},
    "configure": {"queue": "q", "settings": {"max_attempts": 3}},
    "tenants": {"queue": "q"},
    "drop_tenant": {"queue": "q", "tenant": "nobody"},
    "set_weight": {"queue": "q", "tenant": "ada", "weight": 2},
    "set_limits": {"queue": "q", "tenant": "ada", "limits": {"dead": 5, "max_running": 5}},
    "limits": {"queue": "q"},
    "set_opening_hours": {"queue": "q", "tenant": "ada", "opening_hours": "mon-fri 12:00-15:00 UTC"},
    "events": {"queue": "q"},
    "workers": {},
    "worker_tasks": {"worker": "w"},
    "drain_worker": {"worker": "nobody"},
    "pause": {"queue": "q", "tenant": "ada"},
    "repair": {"queue": "q"},
    "resume": {"queue": "q", "tenant": "ada"},
    "create_token": {"id": "fresh", "role": "tenant", "hash": "0" * 64, "tenant": "ada", "queues": ["q"]},
    "list_tokens": {},
    "revoke_token": {"id": "abcd"},
    "audit": {"queue": "q"},
    "delete_queue": {"queue": "q", "purge": True},
}  # fmt: skip
WHOSE = {
    "cancel_all",
    "peek",
    "report",
    "events",
    "schedule",
    "pause_schedule",
    "resume_schedule",
    "schedules",
    "unschedule",
}  # an operator names it


def good(verb: str, role: Role) -> dict[str, Any]:
    """Return a body that is taken from this role: operators and producers spell ids in full."""
    body = deepcopy(GOOD[verb])
    if role is PRODUCER:
        body |= {"tenant": "ada"} if verb == "enqueue" else {"ids": ["open"]} if verb == "batches" else {}
    if role in (OPERATOR, PRODUCER, VIEWER) and verb in OF_TENANTS:
        body |= {"ids": [f"ada/{id}" for id in body["ids"]]} if "ids" in body else {}
        body |= {"id": f"ada/{body['id']}"} if "id" in body else {}
        body |= {"tenant": "ada"} if verb in WHOSE else {}
    return body


class Together(dict[str, Any]):
    """Several fields that break a rule together."""


class Rule(NamedTuple):
    """Values that some verbs refuse in one place."""

    verbs: set[str]
    place: str
    values: tuple[Any, ...]
    code: str = "bad_request"
    roles: tuple[Role, ...] = (TENANT, WORKER, OPERATOR, PRODUCER, VIEWER)
    field: str = ""  # that is named, if not that of the place


NAMES = ("", "Q", "-q", "_q", "q" * 64, "q{x}", "q/x", "q\n", "é")
TENANTS = ("", "t" * 129, "t{x}", "t/x", "t\n", "t x", "\u00e9", "t:x", "t*")
TASK_IDS = ("", "a b", "a" * 65, "a{b}", "ada/a", "a\n", "é")
FULL_IDS = ("", "a", "a b", "ada/", "/a", "a b/a", "ada/a/b", "ada/" + "a" * 65, "a" * 129 + "/a", "ada/a\n")
BATCH_IDS = ("a b", "b" * 41, "b{x}", "ada/b", "b\n", "from", "from-b")
SCHEDULE_NAMES = ("", "N", "-n", "n" * 41, "a/b", "n\n", "from", "from-n")
WORKERS = ("", "a b", "w" * 65, "a/b", "w\n")
SPAN, MOMENT = (-1, MAX_SPAN_MS + 1), (-1, MAX_TIME_MS + 1)
CRONS = (
    "0 3 * *", "0 0 3 * * *", "60 3 * * *", "0 24 * * *", "0 3 * 13 *", "0 3 * * 8", "0 3 */0 * *", "at three",
    "0 0 30 2 *", "0 0 */31 * MON#2", "0" + ",0" * 96 + " 3 * * *",
)  # fmt: skip
ZONES = ("Europe/Atlantis", "europe/copenhagen", "../../etc/passwd", "localtime", "UTC\n", "z" * 1000)
OPENING_HOURS = (
    " ", ",", "at noon", "12:00", "12:00-", "12-15", "12:00-12:00", "24:00-01:00", "12:60-13:00", "12:00-24:01",
    "00:00-24:00", "mon-sun 00:00-12:00, mon-sun 12:00-24:00", "12:00-15:00,", "12:00-15:00 13:00-14:00",
    "day 12:00-15:00", "mon- 12:00-15:00", "mon 12:00-15:00, 16:00-17:00", "12:00-15:00 Europe/Copenhagen UTC",
    ", ".join(["12:00-13:00"] * 33), "12:00-13:00".ljust(MAX_OPENING_HOURS_CHARS + 1),
)  # fmt: skip
QUEUED = {verb for verb, frame in REQUESTS.items() if "queue" in frame.__annotations__}
IDENTIFIED = {verb for verb, frame in REQUESTS.items() if "ids" in frame.__annotations__}
BATCHES = {"batch", "close_batch", "cancel_batch"}
ON_SCHEDULES = {"schedule", "unschedule", "pause_schedule", "resume_schedule", "schedules"}
ON_WEBHOOKS = {"add_webhook", "remove_webhook", "pause_webhook", "resume_webhook"}
NAMING = {verb for verb in OF_OPERATORS if "tenant" in REQUESTS[verb].__annotations__}
TASK_RANGES = {
    "delay_ms": SPAN, "start_at_ms": MOMENT, "expires_in_ms": SPAN, "expires_at_ms": MOMENT,
    "expires_after_start_ms": SPAN, "max_attempts": (-1, 1001),
    "priority": (-1, 100), "result_ttl_ms": SPAN, "dedupe_key": ("k" * 256, "é" * 128, "a\nb", "\x00"),
    "group": ("g" * 129, "é" * 65, "a\nb", "\x00"),
    "group_weight": (0, -1, 0.0009, 10_000.1, 1e308, 2),  # 2 is nothing without a group
}  # fmt: skip
WEIGHTS = (0, -1, 0.0009, 1e-300, 10_000.1, 1e9, 1e308)

ENQUEUES = {"enqueue", "enqueue_from"}
LINK = {"queue": "next", "id": "link", "payload": 1}
LONG = [{**LINK, "payload": "x" * MAX_INLINE_BYTES}]

RULES = [
    Rule(set(REQUESTS), "ref", (-1, 1 << 53)),
    Rule(QUEUED, "queue", NAMES),
    Rule({"settle", "extend", "progress"}, "queue", ("other",)),  # one that it is not attached to
    Rule({"tenants", "repair"}, "queue", ("nowhere",), "not_found"),
    Rule({"repair"}, "number", MOMENT),
    Rule({"history"}, "period", ("", "1H", "7d")),
    Rule({"history"}, "tenants", ([], ["ada", "ada"], [f"t{n}" for n in range(MAX_NAMED + 1)])),
    Rule({"history"}, "tenants", tuple([name] for name in TENANTS)),
    Rule({"history"}, "since_ms", MOMENT),
    Rule(IDENTIFIED, "ids", ([], ["ready", 5])),
    Rule(IDENTIFIED, "ids", (["a"] * (MAX_BATCH + 1),), "too_large"),
    Rule(IDENTIFIED, "ids", tuple([id] for id in TASK_IDS), roles=(TENANT,)),
    Rule(IDENTIFIED, "ids", tuple([id] for id in FULL_IDS), roles=(OPERATOR, PRODUCER)),
    Rule({"cancel", "reschedule", "wait_tasks", "batches"}, "ids", (["a", "a"],)),
    Rule(NAMING - ON_SCHEDULES - {"create_token"}, "tenant", TENANTS, roles=(OPERATOR,)),
    Rule(ON_SCHEDULES, "tenant", (*TENANTS, None), roles=(OPERATOR,)),
    Rule({"peek", "report", "events", "cancel_all"}, "tenant", (None,), roles=(OPERATOR,)),
    Rule(NAMING & OF_TENANTS, "tenant", ("", "bob", "Ada"), "forbidden", (TENANT,)),

    Rule(ENQUEUES, "tasks", ([],)),
    Rule(ENQUEUES, "tasks", ([{"id": f"id-{n}", "payload": 1} for n in range(MAX_BATCH + 1)],), "too_large"),
    Rule(
        ENQUEUES,
        "tasks",
        tuple(
            [{"id": f"id-{n}", "payload": 1, **asked} for n in range(MAX_BATCH // SPECIAL_PLACES + 1)]
            for asked in (
                {"priority": 1}, {"dedupe_key": "k"}, {"result_ttl_ms": 1}, {"events": True}, {"batch": "b"},
                {"group": "g"},
            )
        ),
        "too_large",
    ),
    Rule(ENQUEUES, "tasks.id", TASK_IDS),
    Rule({"enqueue"}, "tasks.id", ("from", "from-a")),
    Rule(ENQUEUES, "tasks.payload", ("x" * (DEFAULT_PAYLOAD_BYTES - 1),), "too_large"),
    *(Rule(ENQUEUES, f"tasks.{name}", values) for name, values in TASK_RANGES.items()),
    Rule(ENQUEUES, "tasks.group_weight", (
        Together(group="g", group_weight=0), Together(batch="open", group_weight=10_000.1))),
    Rule(ENQUEUES, "tasks.name", ("n" * 129, "é" * 65, "a\nb")),
    Rule(ENQUEUES, "tasks.trace", ("x", "00-1-2-01", f"00-{'0' * 32}-{'2' * 16}-01", f"ff-{'1' * 32}-{'2' * 16}-01")),
    Rule(ENQUEUES, "tasks.replace", (True, Together(replace=True, dedupe_key="k", batch="open"))),
    Rule(ENQUEUES, "tasks.expires_after_start_ms", (
        Together(expires_in_ms=1, expires_after_start_ms=1), Together(expires_at_ms=1, expires_after_start_ms=1))),
    Rule({"schedule"}, "expires_after_start_ms", (Together(expires_in_ms=1, expires_after_start_ms=1),)),
    Rule(ENQUEUES, "tasks.start_at_ms", (Together(delay_ms=1, start_at_ms=1),)),
    Rule(ENQUEUES, "tasks.expires_at_ms", (
        Together(expires_in_ms=1, expires_at_ms=1), Together(start_at_ms=2, expires_at_ms=1),
        Together(start_at_ms=2, expires_at_ms=2))),
    Rule(ENQUEUES, "tasks.expires_in_ms", (Together(delay_ms=2, expires_in_ms=2),)),
    Rule(ENQUEUES, "tasks.dedupe_period_ms", (
        5, Together(dedupe_key="k", dedupe_period_ms=-1), Together(dedupe_key="k", dedupe_period_ms=MAX_SPAN_MS + 1))),
    Rule(ENQUEUES, "tasks.batch", BATCH_IDS),
    Rule(ENQUEUES, "tasks.batch", ("none",), "not_found", (TENANT, WORKER)),  # to producers an outcome says it
    Rule(ENQUEUES, "tasks.batch", ("closed", "complete"), "batch_closed", (TENANT, WORKER)),
    Rule({"enqueue"}, "tenant", (*TENANTS, None), roles=(PRODUCER,)),
    Rule({"enqueue"}, "tenant", ("ada", "bob"), "forbidden", (TENANT,)),
    Rule(ENQUEUES, "tasks.tenant", TENANTS),
    Rule(ENQUEUES, "tasks.tenant", ("ada", "bob"), "forbidden", (TENANT, WORKER)),
    Rule({"reschedule"}, "delay_ms", SPAN),
    Rule({"reschedule"}, "start_at_ms", (*MOMENT, Together(delay_ms=1, start_at_ms=1))),
    Rule({"peek", "dead", "schedules", "events", "batches", "worker_tasks"}, "count", (0, MAX_BATCH + 1),
         roles=(TENANT, OPERATOR)),
    Rule({"tenants"}, "count", (0, MAX_BATCH + 1), roles=(OPERATOR,)),
    Rule({"tenants"}, "cursor", ("", "x", "-1", "1.5", "9" * 21, "1" * 301), roles=(OPERATOR,)),
    Rule({"batches"}, "state", ("", "Open", "done"), roles=(TENANT, OPERATOR)),
    Rule({"batches"}, "cursor", ("", "x", "-1", "1.5", "9" * 21, "1" * 301), roles=(TENANT, OPERATOR)),
    Rule({"batches"}, "ids", tuple([id] for id in (*BATCH_IDS, "")), roles=(TENANT,)),
    Rule({"batches"}, "ids", (None,), roles=(PRODUCER,)),
    Rule({"wait_tasks", "batch", "events"}, "timeout_ms", (-1, 60_001)),
    Rule({"events"}, "after", (-1, MAX_EVENT_ID + 1, 1 << 40)),  # the last one: it has not happened yet

    Rule({"open_batch"}, "id", (*BATCH_IDS, ""), roles=(TENANT,)),
    Rule({"open_batch"}, "id", (*FULL_IDS, "ada/" + "b" * 41, "ada/from", "ada/from-b"), roles=(PRODUCER,)),
    Rule(BATCHES, "id", (*BATCH_IDS, ""), roles=(TENANT,)),
    Rule(BATCHES | {"dead_letter", "why"}, "id", FULL_IDS, roles=(OPERATOR, PRODUCER)),
    Rule({"why"}, "id", ("none",), "not_found", (TENANT,)),
    Rule({"why"}, "id", ("ada/none",), "not_found", (OPERATOR,)),
    Rule(BATCHES, "id", ("none",), "not_found", (TENANT,)),
    Rule(BATCHES, "id", ("ada/none",), "not_found", (OPERATOR, PRODUCER)),
    Rule(BATCHES, "id", ("bob/open",), "not_found", (OPERATOR, PRODUCER)),
    Rule({"open_batch"}, "max_running", (-1, MAX_RUNNING + 1)),
    *(Rule({"open_batch"}, f"on_{name}", ("x" * (MAX_CALLBACK_BYTES - 1),), "too_large")
      for name in ("complete", "success", "death")),

    Rule({"dead"}, "reason", ("", "boredom", "Expired")),
    Rule({"dead", "cancel_all"}, "error", ("", "x" * 101)),
    Rule({"dead", "cancel_all"}, "older_than_ms", SPAN),
    Rule({"cancel_all"}, "cursor", ("", "yesterday", "1 0 0 0", "-1 0 0 0 ", "1 0.5 0 0 ", f"1 0 0 0 {'a' * 300}")),
    Rule({"drop_tenant"}, "tenant", ("ada",), "not_empty"),
    Rule({"dead"}, "younger_than_ms", (*SPAN, Together(older_than_ms=5, younger_than_ms=5))),
    Rule({"dead"}, "cursor", ("", "yesterday", "1:1:", "-1:1:a", "1.5:1:a", f"1:1:{'a' * 300}")),
    Rule({"dead_letter", "why"}, "id", TASK_IDS, roles=(TENANT,)),
    Rule({"dead_letter"}, "id", ("none", "ready"), "not_found", (TENANT,)),  # no dead letter
    Rule({"dead_letter"}, "id", ("ada/none", "ada/ready"), "not_found", (OPERATOR,)),

    Rule(ON_SCHEDULES, "name", SCHEDULE_NAMES),
    Rule({"schedules", "pause_schedule", "resume_schedule"}, "name", ("none",), "not_found"),
    Rule({"schedule"}, "payload", ("x" * (MAX_INLINE_BYTES - 1),), "too_large"),
    Rule({"schedule"}, "cron", (*CRONS, Together(every_ms=1000))),
    Rule({"schedule"}, "zone", (*ZONES, Together(cron="", every_ms=1000, zone="UTC"))),
    Rule({"schedule"}, "every_ms", (Together(cron=""), *(
        Together(cron="", every_ms=ms) for ms in (999, -1, MAX_SPAN_MS + 1)))),
    Rule({"schedule"}, "misfire", ("", "all", "Skip")),
    *(Rule({"schedule"}, name, values) for name, values in TASK_RANGES.items() if not name.endswith(("y_ms", "at_ms"))),
    Rule({"schedule"}, "dedupe_period_ms", (
        5, Together(dedupe_key="k", dedupe_period_ms=-1), Together(dedupe_key="k", dedupe_period_ms=MAX_SPAN_MS + 1))),
    Rule({"schedules"}, "offset", MOMENT),

    Rule(ON_WEBHOOKS, "url", (
        "", "https://", "ftp://a.example/", "https://a b/", "https://é.example/", "https://a.example/\n",
        "https://a.example/".ljust(1_001, "u"), "HTTPS://a.example/")),
    Rule(ON_WEBHOOKS, "name", ("n" * 129, "é" * 65, "a\nb")),
    Rule({"pause_webhook", "resume_webhook"}, "url", ("https://b.example/in",), "not_found"),
    Rule({"add_webhook"}, "secrets", ([SECRET] * 5, ["whsec_c2Vj"], ["whsec_"], [SECRET, SECRET[6:]], [f"{SECRET}\n"])),

    Rule({"attach", "drain_worker", "worker_tasks"}, "worker", WORKERS),
    Rule({"worker_tasks"}, "worker", ("nobody",), "not_found"),
    Rule({"attach"}, "queues", ([], *([name] for name in NAMES), ["q", "Q"], [f"q{n}" for n in range(101)])),
    Rule({"attach"}, "queues", (["q"] * (MAX_BATCH + 1),), "too_large"),
    Rule({"attach", "credit"}, "credit", (-1, 501)),
    Rule({"attach"}, "leases", ([{"queue": "other", "id": "ada/leased", "lease": LEASED}],)),
    Rule({"attach"}, "leases.queue", (*NAMES, "other"), field="leases"),
    Rule({"attach", "extend"}, "leases.id", FULL_IDS),
    Rule({"attach", "extend"}, "leases.lease", (-1, 0, 1 << 53)),
    Rule({"attach", "extend"}, "leases", ([{"queue": "q", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"extend"}, "leases", ([],)),
    Rule({"attach"}, "started_at_ms", MOMENT),
    Rule({"attach"}, "prefetch", (-1, 1, 501)),  # of a credit of 0
    Rule({"attach"}, "weights", ([1, 2], *([weight] for weight in WEIGHTS))),
    Rule({"settle"}, "settlements", ([],)),
    Rule({"settle"}, "settlements", ([{"action": "ack", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"settle"}, "settlements.action", ("", "reap", "finish", "Ack", "eat")),
    Rule({"settle"}, "settlements.id", FULL_IDS),
    Rule({"settle"}, "settlements.lease", (-1, 0, 1 << 53)),
    Rule({"settle"}, "settlements.delay_ms", (*SPAN, Together(action="postpone"))),
    Rule({"settle"}, "settlements.error", ("x" * (MAX_ERROR_CHARS + 1),)),
    Rule({"settle"}, "settlements.traceback", (Together(traceback=1, action="nack"),)),
    Rule({"settle"}, "settlements.traceback", (Together(traceback="frames", action="ack"),)),
    Rule(
        {"settle"}, "settlements.traceback", (Together(traceback="x" * 8193, action="reject"),), "too_large"
    ),
    Rule({"settle"}, "settlements.result", ("x" * (MAX_RESULT_BYTES - 1),), "too_large"),
    Rule({"settle"}, "settlements.links", ({}, [1], "all", Together(links=[LINK], action="nack"))),
    Rule({"settle"}, "settlements.links", tuple([LINK, {**LINK, "queue": name}] for name in NAMES), field="queue"),
    Rule({"settle"}, "settlements.links", tuple([LINK, {**LINK, "id": id}] for id in (*TASK_IDS, "link")), field="id"),
    Rule({"settle"}, "settlements.links", ([{**LINK, "tenant": "ada"}],), field="tenant"),
    Rule({"settle"}, "settlements.links", ([{**LINK, "batch": "open"}],), field="batch"),
    Rule({"settle"}, "settlements.links", ([{**LINK, "id": f"l-{n}"} for n in range(17)],), "too_large"),
    Rule({"settle"}, "settlements.links", (LONG,), "too_large", field="payload"),
    Rule({"enqueue_from"}, "leases", ([{"queue": "q", "id": "ada/none", "lease": 1}] * 2,), "forbidden"),
    Rule({"enqueue_from"}, "leases", ([], [{"queue": "q", "id": "ada/leased", "lease": LEASED}] * 3)),
    Rule({"enqueue_from"}, "leases", ([{"queue": "q", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"enqueue_from"}, "leases.queue", NAMES, field="leases"),
    Rule({"enqueue_from"}, "leases.queue", ("other",), "forbidden", field="leases"),
    Rule({"enqueue_from"}, "leases.id", FULL_IDS, field="id"),
    Rule({"enqueue_from"}, "leases.id", ("ada/none",), "forbidden", field="leases"),
    Rule({"enqueue_from"}, "leases.lease", (-1, 0, 1 << 53), field="lease"),
    Rule({"enqueue_from"}, "leases.lease", (1,), "forbidden", field="leases"),
    Rule({"progress"}, "reports", ([],)),
    Rule({"progress"}, "reports", ([{"id": "a", "lease": 1, "fraction": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"progress"}, "reports.id", FULL_IDS),
    Rule({"progress"}, "reports.lease", (-1, 0, 1 << 53)),
    Rule({"progress"}, "reports.fraction", (-0.01, -1, 1.01, 2)),
    Rule({"progress"}, "reports.text", ("x" * 201,)),

    Rule({"configure"}, "settings", ({},)),
    Rule({"configure"}, "settings.share", ("luck", "", 0, None, ["time"])),
    *(Rule({"configure"}, f"settings.{name}", (low - 1, high + 1, str(low), float(low), True, None))
      for name, (low, high) in SETTING_RANGES.items()),
    Rule({"set_weight"}, "weight", WEIGHTS),
    Rule({"set_limits"}, "limits", ({},)),
    *(Rule({"set_limits"}, f"limits.{name}", (-1, highest + 1, str(highest), True))
      for name, highest in LIMIT_RANGES.items()),
    Rule({"set_limits"}, "limits.rate", (-0.001, 1e9, 1e308)),
    *(Rule({"set_limits"}, f"limits.{name}", (1.5,)) for name in LIMIT_RANGES if name != "rate"),
    Rule({"set_opening_hours"}, "opening_hours", OPENING_HOURS),
    Rule(
        {"set_opening_hours"}, "opening_hours", tuple(f"12:00-13:00 {zone}" for zone in ZONES if zone.strip() == zone)
    ),
    Rule({"create_token"}, "id", ("", "abc", "a" * 33, "ABCD", "ab_d", "abcd\n")),
    Rule({"create_token"}, "id", ("abcd",)),  # another token's
    Rule({"create_token"}, "role", ("", "king", "Tenant")),
    Rule({"create_token"}, "hash", ("", "0" * 63, "0" * 65, "A" * 64, "g" * 64)),
    Rule({"create_token"}, "tenant", (
        *TENANTS, None, Together(role="worker"), Together(role="operator"), Together(role="producer", tenant="**"),
        Together(role="producer", tenant="a?"), Together(role="producer", tenant="a" + "*" * 128))),
    Rule({"create_token"}, "queues", ([], *([name] for name in NAMES))),
    Rule({"create_token"}, "queues", (["q"] * (MAX_BATCH + 1),), "too_large"),
    Rule({"create_token"}, "label", ("x" * 81, "a\nb", "\x1b[1m")),
    Rule({"create_token"}, "expires_in_ms", (-1, MAX_SPAN_MS + 1)),
    Rule({"configure", "set_weight", "set_limits", "set_opening_hours"}, "if_version", (
        "", "0" * 11, "0" * 13, "A" * 12, "g" * 12)),
    Rule({"configure", "set_weight", "set_limits", "set_opening_hours"}, "if_version", ("0" * 12,), "stale_version"),
    Rule({"audit"}, "token", ("abc", "a" * 33, "ABCD", "ab_d")),
    Rule({"audit"}, "verb", ("Pause", "a" * 41, "set weight")),
    Rule({"audit"}, "since_ms", (-1, MAX_TIME_MS + 1)),
    Rule({"audit"}, "cursor", ("", "1", "1-", "-1", "x-1", "1-1 ", "1-" + "1" * 11)),
    Rule({"audit"}, "after", ("", "1", "1-", "-1", "x-1", "1-1 ", "1-" + "1" * 11)),
    Rule({"audit"}, "count", (0, -1, 501)),
    Rule({"delete_queue"}, "purge", (False,), "not_empty"),
    Rule({"revoke_token"}, "id", ("", "none", "ABCD"), "not_found"),
]  # fmt: skip


class Row(NamedTuple):
    """One request that is refused."""

    verb: str
    role: Role
    body: dict[str, Any]
    code: str
    field: str


def put(body: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """Return the body with a value in a place; `...` takes the field out."""
    body = deepcopy(body)
    outer, _, name = place.rpartition(".")
    inner = body if not outer else body[outer][-1] if isinstance(body[outer], list) else body[outer]
    inner |= value if isinstance(value, Together) else {name: value}
    for gone in [name for name, value in inner.items() if value is ...]:
        del inner[gone]
    return body


def rows_of(rule: Rule) -> list[Row]:
    """Return the requests of a rule: all values in the first verb and role, then two of them in each other."""
    field = rule.field or rule.place.rpartition(".")[2]
    saying = [
        (verb, role)
        for verb in sorted(rule.verbs)
        for role in sorted(VERBS[REQUESTS[verb]].roles, key=lambda role: role.value)
        if role in rule.roles
    ]
    return [
        Row(verb, role, put(good(verb, role), rule.place, value), rule.code, field)
        for number, (verb, role) in enumerate(saying)
        for value in (rule.values[:2] if number else rule.values)
    ]
