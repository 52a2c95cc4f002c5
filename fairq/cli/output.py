"""Tables for people, JSON for scripts, logs on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import structlog


def print_json(value: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    options = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(value, option=options).decode() + "\n")


def print_table(
    title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], *, empty: str, rare: Collection[str] = ()
) -> None:
    """Print rows as a table; `columns` maps the row's key to the heading.

    `rare`: keys without a column where no row has a value, so that the others are not cut short.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
    if not rows:
        console.print(empty)
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    columns = {key: heading for key, heading in columns.items() if key not in rare or any(row.get(key) for row in rows)}
    for key, heading in columns.items():
        is_number = all(isinstance(row.get(key), int | float) and not isinstance(row.get(key), bool) for row in rows)
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=key == "id")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns))
    console.print(table)


def local_time(moment: datetime, zone: str | None) -> str:
    """Write a time in a time zone; as given if the zone is unknown here."""
    try:
        return moment.astimezone(ZoneInfo(zone or "UTC")).isoformat(" ", "seconds")
    except (LookupError, OSError, ValueError):
        return moment.isoformat(" ", "seconds")


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Draw a bar on standard error while the block lasts, if it is a terminal; `show(done, total)` moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else ""
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case int():
            return f"{value:,}"
        case dict() | list():
            return printable(orjson.dumps(value).decode())
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Escape control characters: tenants and handlers write these texts, operators' terminals show them."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)


def configure_logging(level: str, *, as_json: bool = False) -> None:
    """Send logs to standard error, as lines for people or as JSON: those of structlog, and the SDK's."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([structlog.processors.format_exc_info] if as_json else []),
    ]
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_fields_of_record, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logger = logging.getLogger("fairq")
    logger.handlers[:] = [handler]
    logger.setLevel(number)
    logger.propagate = False


def _fields_of_record(_: object, __: str, line: Any) -> Any:
    """Give a line of `fairq.log` back its event and fields."""
    return {**line, **getattr(line["_record"], "fairq", {})}
