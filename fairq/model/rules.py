"""The rules of fields: each is declared once, at the field, and has its check, its schema and bad examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_type_hints

from attrs import evolve, frozen

from fairq.errors import BadRequest, TooLarge
from fairq.model import checks
from fairq.model.checks import (
    BATCH_ID_PATTERN,
    FULL_ID_PATTERN,
    KNOWN_ID_PATTERN,
    MAX_BATCH,
    MAX_CURSOR_CHARS,
    MAX_SPAN_MS,
    MAX_TIME_MS,
    MAX_WEIGHT,
    MAX_WORKER_CHARS,
    MIN_WEIGHT,
    NAME_PATTERN,
    TENANT_PATTERN,
    WORKER_PATTERN,
    bare_id,
    check_any_id,
    check_batch_id,
    check_flag,
    check_full_id,
    check_int,
    check_known_batch,
    check_known_id,
    check_name,
    check_tenant,
    check_weight,
)

Schema = dict[str, Any]


@frozen(eq=False)
class Rule:
    """The rule of a field, in addition to its type; the field is `Annotated` with it.

    `check` returns a value of the field that is named, or raises BadRequest or TooLarge with that name. `schema` is the
    JSON Schema of such values, `bad` are values of the right type that the check refuses, and `long` those that it
    refuses as too large.
    """

    check: Callable[[Any, str], Any]
    schema: Schema
    bad: tuple[Any, ...] = ()
    long: tuple[Any, ...] = ()


@cache
def rules_of(kind: Any) -> dict[str, Rule]:
    """Map the fields of a class to their rules."""
    hints = get_type_hints(kind, include_extras=True).items()
    return {name: rule for name, hint in hints for rule in getattr(hint, "__metadata__", ()) if type(rule) is Rule}


@cache
def _checks_of(kind: Any) -> tuple[tuple[str, Callable[[Any, str], Any], bool], ...]:
    hints = get_type_hints(kind)
    return tuple((name, rule.check, type(None) in get_args(hints[name])) for name, rule in rules_of(kind).items())


def check_fields(record: Any) -> None:
    """Check the fields of a record by their rules. Raises: BadRequest, TooLarge, naming the field."""
    for name, check, may_be_none in _checks_of(record.__class__):
        value = getattr(record, name)
        if value is not None or not may_be_none:
            check(value, name)


def pattern(*patterns: re.Pattern[str]) -> Schema:
    """Return the schema of a text that matches one of these as a whole; in JSON Schema `$` is the end of a text."""
    either = "|".join(each.pattern.removesuffix("\\Z") for each in patterns)
    return {"type": "string", "pattern": f"^(?:{either})$"}


def matching(pattern_of: re.Pattern[str], words: str, *bad: str, is_secret: bool = False) -> Rule:
    """Return the rule of a text that matches a pattern."""
    return Rule(checks.matching(pattern_of, words, is_secret=is_secret), pattern(pattern_of), bad)


def whole(low: int, high: int) -> Rule:
    """Return the rule of a whole number within a range."""

    def check(value: Any, field: str) -> int:
        return value if type(value) is int and low <= value <= high else check_int(value, field, low, high)

    return Rule(check, {"type": "integer", "minimum": low, "maximum": high}, (low - 1, high + 1))


def number(low: float, high: float) -> Rule:
    """Return the rule of a number within a range."""

    def check(value: Any, field: str) -> float:
        if type(value) in (int, float) and low <= value <= high:
            return float(value)
        raise BadRequest(f"{field} must be a number from {low} to {high}, not {value!r:.80}", field=field)

    schema = {"type": "number", "minimum": low, "maximum": high}
    return Rule(check, schema, (low - 0.001, low - 1, high + 0.001, high + 1))


def text(low: int, high: int) -> Rule:
    """Return the rule of a text within a range of lengths, in characters."""

    def check(value: Any, field: str) -> str:
        if isinstance(value, str) and low <= len(value) <= high:
            return value
        kind = TooLarge if isinstance(value, str) and len(value) > high else BadRequest
        raise kind(f"{field} must be text of {low} to {high} characters", field=field)

    schema = {"type": "string", "maxLength": high} | ({"minLength": low} if low else {})
    return Rule(check, schema, ("x" * (low - 1),) if low else (), ("x" * (high + 1),))


def one_of(*words: str) -> Rule:
    """Return the rule of one of some words."""

    def check(value: Any, field: str) -> str:
        if value in words:
            return str(value)
        raise BadRequest(f"{field} must be one of {', '.join(words)}, not {value!r:.80}", field=field)

    return Rule(check, {"enum": list(words)}, ("", words[0].title(), "none"))


def or_empty(rule: Rule) -> Rule:
    """Return the rule of what may be empty, too."""

    def check(value: Any, field: str) -> Any:
        return value if value == "" else rule.check(value, field)

    return Rule(
        check, {"anyOf": [{"const": ""}, rule.schema]}, tuple(each for each in rule.bad if each != ""), rule.long
    )


def or_null(rule: Rule) -> Rule:
    """Return the rule of what may be null, too."""

    def check(value: Any, field: str) -> Any:
        return None if value is None else rule.check(value, field)

    return Rule(check, {"anyOf": [rule.schema, {"type": "null"}]}, rule.bad, rule.long)


def some_of(rules: Mapping[str, Rule], word: str) -> Rule:
    """Return the rule of an object with at least one of some fields, each a `word`."""

    def check(values: Any, field: str) -> dict[str, Any]:
        if not isinstance(values, dict) or not values:
            raise BadRequest(f"{field} must be an object with at least one {word}", field=field)
        for name, value in values.items():
            if name not in rules:
                raise BadRequest(f"there is no {word} {name!r:.80}; there are {', '.join(rules)}", field=str(name)[:80])
            rules[name].check(value, name)
        return values

    properties = {name: rule.schema for name, rule in rules.items()}
    schema = {"type": "object", "properties": properties, "minProperties": 1, "additionalProperties": False}
    return Rule(check, schema, ({},))


def many(rule: Rule, low: int = 1, high: int = MAX_BATCH, *, once: bool = False) -> Rule:
    """Return the rule of a list within a range of lengths; `once`: without repeats."""

    def check(values: Sequence[Any], field: str) -> Sequence[Any]:
        if not low <= len(values) <= high:
            kind = TooLarge if len(values) > high else BadRequest
            raise kind(f"{field} must have {low} to {high} items", field=field)
        for value in values:
            rule.check(value, field)
        if once and len(set(values)) < len(values):
            raise BadRequest(f"{field} must not contain duplicates", field=field)
        return values

    schema = {"type": "array", "items": rule.schema, "maxItems": high} | ({"minItems": low} if low else {})
    bad = [[each] for each in rule.bad]
    return Rule(check, schema | ({"uniqueItems": True} if once else {}), ([], *bad) if low else tuple(bad))


def _check_new_batch(value: str, field: str) -> str:
    check_known_batch(value, field)
    check_batch_id(bare_id(value), field)
    return value


QUEUE = Rule(check_name, pattern(NAME_PATTERN), ("", "Q", "-q", "_q", "q" * 64, "q{x}", "q/x", "q\n", "é"))
TENANT = Rule(
    check_tenant, pattern(TENANT_PATTERN), ("", "t" * 129, "t{x}", "t/x", "t\n", "t x", "é", "t:x", "t*")
)  # fmt: skip
WORKER = matching(
    WORKER_PATTERN, f"1 to {MAX_WORKER_CHARS} characters of A-Z, a-z, 0-9, '.', '_', '-'",
    "", "a b", "w" * 65, "a/b", "w\n",
)  # fmt: skip
TASK_ID = Rule(check_known_id, pattern(KNOWN_ID_PATTERN), ("", "a b", "a" * 65, "a{b}", "ada/a", "a\n", "é"))
FULL_ID = Rule(
    check_full_id,
    pattern(FULL_ID_PATTERN),
    ("", "a", "a b", "ada/", "/a", "a b/a", "ada/a/b", "ada/" + "a" * 65, "a" * 129 + "/a", "ada/a\n"),
)
TASK = Rule(check_any_id, pattern(KNOWN_ID_PATTERN, FULL_ID_PATTERN))  # of the two, each role has one
BAD_BATCHES = ("a b", "b" * 41, "b{x}", "ada/b", "b\n", "from", "from-b")  # by bare ids
BATCH = Rule(check_known_batch, pattern(BATCH_ID_PATTERN, FULL_ID_PATTERN))
NEW_BATCH = evolve(BATCH, check=_check_new_batch)
QUEUES = many(QUEUE)
IDS, IDS_ONCE = many(TASK), many(TASK, once=True)
MAX_LEASE = (1 << 53) - 1
LEASE = whole(1, MAX_LEASE)  # the number of one
COUNT = whole(1, MAX_BATCH)
CURSOR = text(1, MAX_CURSOR_CHARS)
SPAN, MOMENT = whole(0, MAX_SPAN_MS), whole(0, MAX_TIME_MS)  # in ms
# In ms, where none has a meaning of its own: None says that, and a 0 that was computed does not.
SOME_SPAN, SOME_MOMENT = whole(1, MAX_SPAN_MS), whole(1, MAX_TIME_MS)
FLAG = Rule(check_flag, {"type": "boolean"})
WEIGHT = Rule(
    check_weight,
    {"type": "number", "minimum": MIN_WEIGHT, "maximum": MAX_WEIGHT},
    (0, -1, 0.0009, 1e-300, 10_000.1, 1e9, 1e308),
)
