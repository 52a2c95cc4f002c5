"""What the verbs refuse, as data: per verb a body that is taken, and values that are refused.

Values that break the rule of one field stand with that rule (fairq/model/rules.py); the others are here.

A row puts one value into the good body of its verb. `place` is a field of the frame, or `<field>.<part>` of the last
thing in a list (or of an object), so that all before it were good. Wrong types, missing and unknown fields have no
rows: they follow from the types of the frames.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from fairq.model import rules
from fairq.model.batches import CALLBACKS, MAX_CALLBACK_BYTES
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, MAX_BATCH, MAX_INLINE_BYTES, MAX_SPAN_MS
from fairq.model.history import MAX_NAMED
from fairq.model.limits import LIMIT_RANGES
from fairq.model.opening_hours import MAX_OPENING_HOURS_CHARS
from fairq.model.queues import SETTING_RANGES
from fairq.model.tasks import MAX_RESULT_BYTES, RARE_COUNTS
from fairq.wire.terms import Role
from fairq.wire.verbs import VERBS

TENANT, WORKER, OPERATOR, PRODUCER = Role.TENANT, Role.WORKER, Role.OPERATOR, Role.PRODUCER
VIEWER = Role.VIEWER
REQUESTS = {frame.type: frame for frame, verb in VERBS.items() if verb.reply is not None}
OF_TENANTS = {verb for verb, frame in REQUESTS.items() if TENANT in VERBS[frame].roles}
OF_OPERATORS = {verb for verb, frame in REQUESTS.items() if OPERATOR in VERBS[frame].roles}

SECRET = "whsec_" + "c2Vj" * 8
LEASED = 123_456_789  # stands for the number of the lease of the task `leased`
CALLING = 987_654_321  # for that of the callback task, and has its id stand in the place of its batch's
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
    "set_schedule_paused": {"queue": "q", "name": "nightly", "paused": True},
    "schedules": {"queue": "q", "name": "nightly"},
    "unschedule": {"queue": "q", "name": "nightly"},
    "add_webhook": {"queue": "q", "url": "https://a.example/in", "has_fan_out": True, "secrets": [SECRET]},
    "set_webhook_paused": {"queue": "q", "url": "https://a.example/in", "paused": True},
    "webhooks": {"queue": "q"},
    "remove_webhook": {"queue": "q", "url": "https://a.example/in"},
    "enqueue_from": {"queue": "q", "leases": [{"queue": "q", "id": "ada/leased", "lease": LEASED}] * 2, "tasks": [
        {"id": "made-1", "payload": 1}, {"id": "made-2", "payload": 1}]},
    "batch_results": {"queue": "q", "id": "ada/called", "lease": CALLING},
    "attach": {"worker": "other", "queues": ["q"], "credit": 0, "leases": [
        {"queue": "q", "id": "ada/leased", "lease": LEASED}, {"queue": "q", "id": "ada/none", "lease": 1}]},
    "credit": {"credit": 1},
    "progress": {"queue": "q", "reports": [
        {"id": "ada/leased", "lease": LEASED, "fraction": 0.5}, {"id": "ada/none", "lease": 1, "fraction": 1}]},
    "settle": {"queue": "q", "settlements": [
        {"action": "ack", "id": "ada/none", "lease": 1}, {"action": "nack", "id": "ada/leased", "lease": LEASED}]},
    "declare": {"app": "jobs", "schedules": [
        {"queue": "q", "tenant": "ada", "name": "weekly", "payload": 1, "cron": "@weekly"},
        {"queue": "q", "tenant": "ada", "name": "hourly", "payload": 1, "every_ms": 3_600_000}]},
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
    "attempts": {"queue": "q"},
    "drain_worker": {"worker": "nobody"},
    "set_paused": {"queue": "q", "tenant": "ada", "paused": True},
    "repair": {"queue": "q"},
    "create_token": {"id": "fresh", "role": "tenant", "hash": "0" * 64, "tenant": "ada", "queues": ["q"]},
    "list_tokens": {},
    "revoke_token": {"id": "abcd"},
    "audit": {"queue": "q"},
    "delete_queue": {"queue": "q", "purge": True},
}  # fmt: skip


def good(verb: str, role: Role) -> dict[str, Any]:
    """Return a body that is taken from this role: operators and producers spell ids in full."""
    body = deepcopy(GOOD[verb])
    if role is PRODUCER:
        body |= {"tenant": "ada"} if verb == "enqueue" else {"ids": ["open"]} if verb == "batches" else {}
    if role in (OPERATOR, PRODUCER, VIEWER) and verb in OF_TENANTS:
        body |= {"ids": [f"ada/{id}" for id in body["ids"]]} if "ids" in body else {}
        body |= {"id": f"ada/{body['id']}"} if "id" in body else {}
        body |= {"tenant": "ada"} if verb in NAMING else {}
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
IDENTIFIED = {verb for verb, frame in REQUESTS.items() if "ids" in frame.__annotations__}
BATCHES = {"batch", "close_batch", "cancel_batch"}
ON_SCHEDULES = {"schedule", "unschedule", "set_schedule_paused", "schedules"}
NAMING = {verb for verb in OF_OPERATORS if "tenant" in REQUESTS[verb].__annotations__}
ENQUEUES = {"enqueue", "enqueue_from"}
LINK = {"queue": "next", "id": "link", "payload": 1}
LINKS: list[tuple[Any, str, str]] = [
    ({}, "bad_request", "links"),
    ([1], "bad_request", "links"),
    ("all", "bad_request", "links"),
    *(([LINK, {**LINK, "queue": each}], "bad_request", "queue") for each in rules.QUEUE.bad),
    *(([LINK, {**LINK, "id": each}], "bad_request", "id") for each in (*rules.TASK_ID.bad, "link")),
    ([{**LINK, "tenant": "ada"}], "bad_request", "tenant"),
    ([{**LINK, "batch": "open"}], "bad_request", "batch"),
    ([{**LINK, "id": f"l-{n}"} for n in range(17)], "too_large", "links"),
    ([{**LINK, "payload": "x" * MAX_INLINE_BYTES}], "too_large", "payload"),
]
UNFIT: list[tuple[str, Any, tuple[str, ...]]] = [  # fields of settlements, and actions that have them not
    ("delay_ms", 1, ("ack", "reject", "extend")),
    ("error", "e", ("ack", "extend")),
    ("result", 1, ("nack", "reject", "release", "extend")),
    ("links", [LINK], ("nack", "reject", "release", "extend")),
    ("traceback", "t", ("ack", "release", "extend")),
]


def parts_of(verb: str) -> dict[str, Any]:
    """Return the classes whose fields a verb takes: the frame's under "", those in its lists under their names."""
    hints = get_type_hints(REQUESTS[verb])
    inner = {name: get_args(kind)[0] for name, kind in hints.items() if get_origin(kind) is list}
    return {"": REQUESTS[verb], **{name: kind for name, kind in inner.items() if kind is not str and kind is not float}}


def declared() -> list[Rule]:
    """Return the values that break the rules of fields."""
    found: dict[tuple[str, rules.Rule], set[str]] = defaultdict(set)
    for verb in REQUESTS:
        for outer, kind in parts_of(verb).items():
            for name, rule in rules.rules_of(kind).items():
                found[f"{outer}.{name}".lstrip("."), rule].add(verb)
    others = (WORKER, OPERATOR, PRODUCER, VIEWER)  # tenants hear `forbidden`
    return [
        Rule(
            verbs,
            place,
            values,
            code,
            roles=others if place == "tenant" else (TENANT, *others),
            field="leases" if place == "leases.queue" else "",
        )
        for (place, rule), verbs in found.items()
        for values, code in ((rule.bad, "bad_request"), (rule.long, "too_large"))
        if values
    ]


RULES = [
    Rule(set(REQUESTS), "ref", (-1, 1 << 53)),
    Rule(ENQUEUES, "tasks.dedupe_period_ms", (5,)),  # it is nothing without a key
    Rule({"schedule"}, "dedupe_period_ms", (5,)),
    Rule({"attach"}, "leases", ([{"queue": "other", "id": "ada/leased", "lease": LEASED}],)),
    Rule({"settle"}, "settlements", ([],)),
    Rule({"enqueue_from"}, "leases", ([{"queue": "q", "id": "ada/none", "lease": 1}] * 2,), "forbidden"),
    Rule({"progress"}, "reports", ([],)),
    *declared(),
    Rule({"settle", "progress"}, "queue", ("other",)),  # one that it is not attached to
    Rule({"tenants", "repair"}, "queue", ("nowhere",), "not_found"),
    Rule({"history"}, "tenants", (["ada", "ada"],)),
    Rule({"history"}, "tenants", ([f"t{n}" for n in range(MAX_NAMED + 1)],), "too_large"),
    Rule(IDENTIFIED, "ids", (["ready", 5],)),
    Rule(IDENTIFIED, "ids", (["a"] * (MAX_BATCH + 1),), "too_large"),
    Rule(IDENTIFIED, "ids", tuple([id] for id in rules.TASK_ID.bad), roles=(TENANT,)),
    Rule(IDENTIFIED, "ids", tuple([id] for id in rules.FULL_ID.bad), roles=(OPERATOR, PRODUCER)),
    Rule({"cancel", "reschedule", "wait_tasks", "batches"}, "ids", (["a", "a"],)),
    Rule({*ON_SCHEDULES, "peek", "report", "events", "cancel_all"}, "tenant", (None,), roles=(OPERATOR,)),
    Rule(NAMING & OF_TENANTS, "tenant", ("", "bob", "Ada"), "forbidden", (TENANT,)),

    Rule(ENQUEUES, "tasks", ([],)),
    Rule(ENQUEUES, "tasks", ([{"id": f"id-{n}", "payload": 1} for n in range(MAX_BATCH + 1)],), "too_large"),
    Rule(
        ENQUEUES,
        "tasks",
        tuple(
            [{"id": f"id-{n}", "payload": 1, **asked} for n in range(MAX_BATCH // RARE_COUNTS + 1)]
            for asked in (
                {"priority": 1}, {"dedupe_key": "k"}, {"result_ttl_ms": 1}, {"events": True}, {"batch": "b"},
                {"group": "g"},
            )
        ),
        "too_large",
    ),
    Rule({"enqueue"}, "tasks.id", ("from", "from-a")),
    Rule(ENQUEUES, "tasks.payload", ("x" * (DEFAULT_PAYLOAD_BYTES - 1),), "too_large"),
    Rule(ENQUEUES, "tasks.replace", (True, Together(replace=True, dedupe_key="k", batch="open"))),
    Rule(ENQUEUES, "tasks.expires_after_start_ms", (
        Together(expires_in_ms=1, expires_after_start_ms=1), Together(expires_at_ms=1, expires_after_start_ms=1))),
    Rule({"schedule"}, "expires_after_start_ms", (Together(expires_in_ms=1, expires_after_start_ms=1),)),
    Rule(ENQUEUES, "tasks.start_at_ms", (Together(delay_ms=1, start_at_ms=1),)),
    Rule(ENQUEUES, "tasks.expires_at_ms", (
        Together(expires_in_ms=1, expires_at_ms=1), Together(start_at_ms=2, expires_at_ms=1),
        Together(start_at_ms=2, expires_at_ms=2))),
    Rule(ENQUEUES, "tasks.expires_in_ms", (Together(delay_ms=2, expires_in_ms=2),)),
    Rule(ENQUEUES, "tasks.batch", ("none",), "not_found", (TENANT, WORKER)),  # to producers an outcome says it
    Rule(ENQUEUES, "tasks.batch", ("closed", "complete"), "batch_closed", (TENANT, WORKER)),
    Rule({"enqueue"}, "tenant", (None,), roles=(PRODUCER,)),
    Rule({"enqueue"}, "tenant", ("ada", "bob"), "forbidden", (TENANT,)),
    Rule(ENQUEUES, "tasks.tenant", rules.TENANT.bad),
    Rule(ENQUEUES, "tasks.tenant", ("ada", "bob"), "forbidden", (TENANT, WORKER)),
    Rule({"reschedule"}, "start_at_ms", (Together(delay_ms=1, start_at_ms=1),)),
    Rule({"batches"}, "cursor", ("x", "-1", "1.5", "9" * 21), roles=(TENANT, OPERATOR)),
    Rule({"batches"}, "ids", tuple([id] for id in (*rules.BAD_BATCHES, "")), roles=(TENANT,)),
    Rule({"batches"}, "ids", (None,), roles=(PRODUCER,)),
    Rule({"events"}, "after", (1 << 40,)),  # the last one: it has not happened yet

    Rule({"open_batch"}, "id", (*rules.BAD_BATCHES, ""), roles=(TENANT,)),
    Rule({"open_batch"}, "id", (*rules.FULL_ID.bad, "ada/" + "b" * 41, "ada/from", "ada/from-b"), roles=(PRODUCER,)),
    Rule(BATCHES, "id", (*rules.BAD_BATCHES, ""), roles=(TENANT,)),
    Rule(BATCHES | {"dead_letter", "why"}, "id", rules.FULL_ID.bad, roles=(OPERATOR, PRODUCER)),
    Rule({"why"}, "id", ("none",), "not_found", (TENANT,)),
    Rule({"why"}, "id", ("ada/none",), "not_found", (OPERATOR, PRODUCER)),
    Rule(BATCHES, "id", ("none",), "not_found", (TENANT,)),
    Rule(BATCHES, "id", ("ada/none",), "not_found", (OPERATOR, PRODUCER)),
    Rule(BATCHES, "id", ("bob/open",), "not_found", (OPERATOR, PRODUCER)),
    *(Rule({"open_batch"}, f"on_{name}", ("x" * (MAX_CALLBACK_BYTES - 1),), "too_large")
      for name in ("complete", "success", "death")),
    *(Rule({"open_batch"}, f"{on}_name", ("alarm",)) for on in CALLBACKS),  # it names no task

    Rule({"cancel_all"}, "cursor", ("yesterday", "1 0 0 0", "-1 0 0 0 ", "1 0.5 0 0 ")),
    Rule({"drop_tenant"}, "tenant", ("ada",), "not_empty"),
    Rule({"dead"}, "younger_than_ms", (Together(older_than_ms=5, younger_than_ms=5),)),
    Rule({"dead"}, "cursor", ("yesterday", "1:1:", "-1:1:a", "1.5:1:a")),
    Rule({"dead_letter", "why"}, "id", rules.TASK_ID.bad, roles=(TENANT,)),
    Rule({"dead_letter"}, "id", ("none", "ready"), "not_found", (TENANT,)),  # no dead letter
    Rule({"dead_letter"}, "id", ("ada/none", "ada/ready"), "not_found", (OPERATOR,)),

    Rule({"schedules", "set_schedule_paused"}, "name", ("none",), "not_found"),
    Rule(ON_SCHEDULES, "tenant", (None,), roles=(PRODUCER,)),
    Rule({"declare"}, "schedules", ([GOOD["declare"]["schedules"][0]] * (MAX_BATCH + 1),), "too_large"),
    Rule({"declare"}, "schedules", ([GOOD["declare"]["schedules"][0]] * 2,)),
    Rule({"declare"}, "schedules.queue", ("other",), field="queue"),
    Rule({"declare"}, "schedules.payload", ("x" * (MAX_INLINE_BYTES - 1),), "too_large"),
    Rule({"declare"}, "schedules.every_ms", (999, MAX_SPAN_MS + 1)),
    Rule({"declare"}, "schedules.zone", ("Europe/Atlantis",)),
    Rule({"declare"}, "schedules.dedupe_period_ms", (5,)),
    Rule({"declare"}, "schedules.cron", ("every day", "x" * 201)),
    Rule({"schedule"}, "payload", ("x" * (MAX_INLINE_BYTES - 1),), "too_large"),
    Rule({"schedule"}, "cron", (*CRONS, Together(every_ms=1000))),
    Rule({"schedule"}, "zone", (*ZONES, Together(cron="", every_ms=1000, zone="UTC"))),
    Rule({"schedule"}, "every_ms", (Together(cron=""), *(
        Together(cron="", every_ms=ms) for ms in (999, -1, MAX_SPAN_MS + 1)))),

    Rule({"set_webhook_paused"}, "url", ("https://b.example/in",), "not_found"),
    Rule({"add_webhook"}, "secrets", (["whsec_c2Vj"], ["whsec_"], [SECRET, SECRET[6:]], [f"{SECRET}\n"])),

    Rule({"add_webhook"}, "secrets", ([SECRET] * 5,), "too_large"),

    Rule({"worker_tasks"}, "worker", ("nobody",), "not_found"),
    Rule({"attach"}, "queues", (["q", "Q"],)),
    Rule({"attach"}, "queues", ([f"q{n}" for n in range(101)], ["q"] * (MAX_BATCH + 1)), "too_large"),
    Rule({"attach"}, "leases.queue", ("other",), field="leases"),
    Rule({"attach"}, "leases", ([{"queue": "q", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"attach"}, "prefetch", (1,)),  # of a credit of 0
    Rule({"settle"}, "settlements", ([{"action": "ack", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"settle"}, "settlements.traceback", (1,)),
    *(Rule({"settle"}, f"settlements.{name}", (Together({name: value}, action=action),))
      for name, value, actions in UNFIT for action in actions),
    Rule({"settle"}, "settlements.result", (Together(action="ack", result="x" * (MAX_RESULT_BYTES - 1)),), "too_large"),
    *(Rule({"settle"}, "settlements.links", (Together(action="ack", links=links),), code, field=field)
      for links, code, field in LINKS),
    Rule({"enqueue_from"}, "leases", ([], [{"queue": "q", "id": "ada/leased", "lease": LEASED}] * 3)),
    Rule({"enqueue_from"}, "leases", ([{"queue": "q", "id": "a", "lease": 1}] * (MAX_BATCH + 1),), "too_large"),
    Rule({"enqueue_from"}, "leases.queue", ("other",), "forbidden", field="leases"),
    Rule({"enqueue_from"}, "leases.id", ("ada/none",), "forbidden", field="leases"),
    Rule({"enqueue_from"}, "leases.lease", (1,), "forbidden", field="leases"),
    Rule({"batch_results"}, "id", ("ada/none", "bob/called"), "forbidden", field="lease"),
    Rule({"batch_results"}, "lease", (1,), "forbidden"),
    Rule({"progress"}, "reports", ([{"id": "a", "lease": 1, "fraction": 1}] * (MAX_BATCH + 1),), "too_large"),

    Rule({"configure"}, "settings.share", ("luck", "", 0, None, ["time"])),
    *(Rule({"configure"}, f"settings.{name}", (low - 1, high + 1, str(low), float(low), True, None))
      for name, (low, high) in SETTING_RANGES.items()),
    Rule({"configure"}, "settings.queue_weight", (0, -1, 0.0009, 10_000.1, 1e308, "1", True, None)),
    *(Rule({"set_limits"}, f"limits.{name}", (-1, highest + 1, str(highest), True))
      for name, highest in LIMIT_RANGES.items()),
    Rule({"set_limits"}, "limits.rate", (-0.001, 1e9, 1e308)),
    *(Rule({"set_limits"}, f"limits.{name}", (1.5,)) for name in LIMIT_RANGES if name != "rate"),
    Rule({"set_opening_hours"}, "opening_hours", OPENING_HOURS),
    Rule(
        {"set_opening_hours"}, "opening_hours", tuple(f"12:00-13:00 {zone}" for zone in ZONES if zone.strip() == zone)
    ),
    Rule({"create_token"}, "id", ("abcd",)),  # another token's
    Rule({"create_token"}, "tenant", (
        None, Together(role="viewer"), Together(role="operator"), Together(role="producer", tenant="**"),
        Together(role="producer", tenant="a?"), Together(role="producer", tenant="a" + "*" * 128))),
    Rule({"create_token"}, "queues", (["q"] * (MAX_BATCH + 1),), "too_large"),
    Rule({"configure", "set_weight", "set_limits", "set_opening_hours"}, "if_version", ("0" * 12,), "stale_version"),
    Rule({"delete_queue"}, "purge", (False,), "not_empty"),
    Rule({"revoke_token"}, "id", ("none",), "not_found"),
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
