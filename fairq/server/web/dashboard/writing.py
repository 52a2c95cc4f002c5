"""How values are written on pages: templates, and the filters that they use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from fairq.model.dead_letters import MAX_SEARCH_CHARS
from fairq.model.places import AwayPartition
from fairq.model.texts import moment_of, say_away, say_ms, say_sharing, say_span
from fairq.model.why_text import say_silence, say_silent
from fairq.model.workers import SilentWorker

HERE = Path(__file__).parent
STATIC = HERE / "static"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TURNS = re.compile("[\u202a-\u202e\u2066-\u2069]")  # turn the direction in which the text around them reads
_TAG_OR_TURN = re.compile(f"<[^>]*>|{_TURNS.pattern}")


def count(value: float | None) -> str:
    """Write a whole number with separators; a dash for none."""
    return "–" if value is None else f"{value:,.0f}"


def span(ms: float | None) -> str:
    """Write a duration: ms below a second, tenths below a minute, else its two largest units."""
    if ms is None:
        return "–"
    return say_ms(ms) if ms < 60_000 else say_span(int(ms))


def part(value: float | None) -> str:
    """Write a part of a whole as a percentage."""
    return "–" if value is None else f"{value:.1%}" if value < 0.0995 else f"{value:.0%}"


def number(value: float) -> str:
    """Write a number in its shortest form."""
    return f"{value:,.3f}".rstrip("0").rstrip(".")


def typed(value: float) -> str:
    """Write a number as it is typed into a form: all of it, and no commas."""
    return str(int(value)) if float(value).is_integer() else repr(value)


def size(value: float) -> str:
    """Write a number of bytes."""
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    raise AssertionError


def moment(ms: int) -> str:
    """Write a time in UTC."""
    return f"{moment_of(ms):%Y-%m-%d %H:%M:%S} UTC" if ms else "–"


def as_json(value: Any, indent: bool = False) -> str:
    """Write JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 if indent else 0, default=str).decode()


def briefly(value: Any) -> str:
    """Write a value of the audit: `weight 2`, not its JSON."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {briefly(each)}" for name, each in value.items())
    if isinstance(value, float):
        return number(value)
    return "" if value is None else value if isinstance(value, str) else as_json(value)


def sought(error: str) -> str:
    """Return the filter that finds dead letters with an error: as much of its first line as a filter may have."""
    return next(iter(error.strip().splitlines()), "")[:MAX_SEARCH_CHARS]


def query(**values: Any) -> str:
    """Write a query string, without what is empty."""
    return urlencode({name: value for name, value in values.items() if value not in (None, "", False)}, doseq=True)


@cache
def version_of(name: str) -> str:
    """Return a few digits of a static file's hash: browsers keep it until it changes."""
    return sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def say_lost(row: Mapping[str, Any]) -> str:
    """Say which partitions of a queue's row do not answer."""
    return say_away(row["queue"], [AwayPartition(**each) for each in row["away"]])


def silence(each: Mapping[str, Any]) -> str:
    """Describe a silent worker of a queue's row."""
    return say_silence(SilentWorker(**each))


class _Written(Template):
    """A template of pages."""

    def render(self, *args: Any, **more: Any) -> str:
        """Write a page; characters that turn the direction are escapes in texts, and forms send back what they had."""
        html = super().render(*args, **more)
        return _TAG_OR_TURN.sub(_escape_turn, html) if _TURNS.search(html) else html


def _escape_turn(found: re.Match[str]) -> str:
    text = found[0]
    return text if text[0] == "<" else text.encode("unicode_escape").decode()


def make_environment(*, is_dev: bool) -> Environment:
    """Make the environment of the templates; with `is_dev`, commands on pages name development tokens."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.template_class = _Written
    written = (count, span, part, number, typed, size, moment, as_json, briefly, sought)
    for each in (*written, say_sharing, say_silent, say_lost, silence):
        environment.filters[each.__name__] = each
    environment.globals.update(query=query, version_of=version_of, is_dev=is_dev)
    return environment
