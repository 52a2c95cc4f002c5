"""Tables for people, JSON for scripts, logs on standard error."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import orjson
import structlog

from fairq.log import Log, name_of, write_by
from fairq.model.texts import say_moment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from fairq.cli.log_writer import LogWriter

_log = Log("fairq")

PIPE_WIDTH = 160  # columns where the output is no terminal
MAX_VALUE_CHARS = 20_000  # of a text in a log line; half more where many are escaped
_MARK_CHARS = 50  # where it is cut
_CHARS_OF_ESCAPE = 12  # at most, in JSON
_WORDS = {"credit": "slots", "held": "running", "leased": "running", "leased_at_ms": "started"}
_OF_LINES = ("exception", "stack")  # in a line of the log
_FRAME_LINES = 6  # of a table: its title, its heading, and a line below it


def print_json(value: Any) -> None:
    """Print one JSON document, indented on a terminal."""
    options = orjson.OPT_INDENT_2 if sys.stdout.isatty() else 0
    sys.stdout.write(orjson.dumps(value, option=options).decode() + "\n")


def print_json_line(value: Any) -> None:
    """Print one of several JSON documents, as a line of its own, at once."""
    print(orjson.dumps(value).decode(), flush=True)


def make_console() -> Console:
    """Make the console for standard output."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, markup=False, emoji=False, highlight=False)


def columns_of(*keys: str, **headings: str) -> dict[str, str]:
    """Make a table's columns: the heading of a key is its words, unless _WORDS or `headings` has another one."""
    own = {key: _WORDS.get(key) or key.removeprefix("is_").removesuffix("_at_ms").replace("_", " ") for key in keys}
    return own | headings


def print_rows(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    empty: str,
    rare: Collection[str] = (),
    json: bool = False,
) -> None:
    """Print rows as a table, or as JSON; see make_table."""
    if json:
        print_json(rows)
        return
    console = make_console()
    columns = _without_rare(columns, rows, rare)
    if rows and _least_width(columns, rows) > console.width:
        print(title, *(line for row in rows for line in _paragraph(columns, row)), sep="\n")
    else:
        console.print(make_table(title, columns, rows, empty=empty))


def _without_rare(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], rare: Collection[str]
) -> dict[str, str]:
    return {key: heading for key, heading in columns.items() if key not in rare or any(row.get(key) for row in rows)}


def _least_width(columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> int:
    """Return how wide a table must be so that no word in it is cut."""
    texts = ([heading, *(_cell(key, row.get(key)) for row in rows)] for key, heading in columns.items())
    return 1 + sum(3 + max((len(word) for text in column for word in text.split()), default=0) for column in texts)


def _paragraph(columns: Mapping[str, str], row: Mapping[str, Any]) -> Iterator[str]:
    """Write a row where its table has no room: the first cell, and below it a line for each other one."""
    (_, first), *others = ((heading, _cell(key, row.get(key))) for key, heading in columns.items())
    yield first
    for heading, cell in others:
        if cell:
            yield f"  {heading}{': ' * bool(heading)}{cell}".replace("\n", "\n    ")


def print_fields(title: str, row: Mapping[str, Any], *, json: bool) -> None:
    """Print one row, a line for each of its fields; or as JSON."""
    if json:
        print_json(row)
        return
    rows = [{"name": key.removesuffix("_at_ms"), "value": _cell(key, value)} for key, value in row.items()]
    print_rows(title, {"name": "", "value": ""}, rows, empty="")


def make_table(
    title: str,
    columns: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    *,
    empty: str,
    rare: Collection[str] = (),
    lines: int | None = None,
) -> RenderableType:
    """Make a table of rows; `columns` maps the row's key to the heading. Without rows it is the text `empty`.

    `rare`: keys without a column where no row has a value, so that the others are not cut short. `lines`: how high it
    may be; the title then says how many of the rows are in it. A key that ends in `_at_ms` is a time, in `_part` a part
    of a whole.
    """
    from rich.table import Table

    if not rows:
        return empty
    if lines is not None and (most := max(1, lines - _FRAME_LINES)) < len(rows):
        title, rows = f"{title}: {most:,} of {len(rows):,}", rows[:most]
    table = Table(title=title, title_justify="left", header_style="bold", show_header=any(columns.values()))
    columns = _without_rare(columns, rows, rare)
    for key, heading in columns.items():
        is_number = key.endswith("_part") or (
            not key.endswith("_at_ms")
            and all(isinstance(row.get(key), int | float) and not isinstance(row.get(key), bool) for row in rows)
        )
        table.add_column(heading, justify="right" if is_number else "left", no_wrap=key == "id")
    for row in rows:
        table.add_row(*(_cell(key, row.get(key)) for key in columns))
    return table


def fit_columns(
    columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]], width: int, first_to_go: Sequence[str]
) -> dict[str, str]:
    """Return the columns that fit in a terminal's width without a cell being cut; drop some of the named ones."""
    needs = {key: 3 + max(len(columns[key]), *(len(_cell(key, row.get(key))) for row in rows), 0) for key in columns}
    left, gone = dict(columns), iter(first_to_go)
    while 1 + sum(needs[key] for key in left) > width and (key := next(gone, None)) is not None:
        left.pop(key, None)
    return left


def local_time(moment: datetime, zone: str | None) -> str:
    """Write a time in a time zone; as given if the zone is unknown here."""
    try:
        return moment.astimezone(ZoneInfo(zone or "UTC")).isoformat(" ", "seconds")
    except (LookupError, OSError, ValueError):
        return moment.isoformat(" ", "seconds")


def _cell(key: str, value: Any) -> str:
    match value:
        case None:
            return "no contest" if key == "contested_part" else ""
        case int() if key.endswith("_at_ms"):
            return say_moment(value)
        case float() if key.endswith("_part"):
            return f"{100 * value:.1f} %"
        case bool():
            return "yes" if value else ""
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case int():
            return f"{value:,}"
        case [*texts] if texts and all(isinstance(text, str) for text in texts) and key != "payload":
            return printable(", ".join(texts))
        case dict() | list():
            return printable(orjson.dumps(value).decode())
        case _:
            return printable(str(value))


def printable(text: str) -> str:
    """Escape control characters: tenants and handlers write these texts, operators' terminals show them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def in_line(text: str) -> str:
    """Escape control characters, and line feeds too: no text can look like a line of its own."""
    return printable(text).replace("\n", "\\n")


def configure_logging(
    level: str, *, as_json: bool = False, to: LogWriter | None = None, loggers: Sequence[str] = ("fairq",)
) -> None:
    """Send logs to standard error, as lines for people or as JSON.

    These are the lines of structlog, of `fairq.log`, and of some loggers of `logging`; what no handler takes; warnings;
    and exceptions that end a thread or are ignored.
    """
    stream: Any = to or sys.stderr
    console = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    render: list[Any] = [structlog.processors.JSONRenderer()] if as_json else [_escape, console]
    common: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _cut_values,
    ]
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *common, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream),
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_fields_of_record, *common],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    for name in (*loggers, "py.warnings"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(number)
        logger.propagate = False
    last = logging.StreamHandler(stream)
    last.setLevel(logging.WARNING)
    last.setFormatter(handler.formatter)
    logging.lastResort = last
    write_by(partial(_write_record, handler, number))
    threading.excepthook, sys.unraisablehook = _log_of_thread, _log_unraisable
    logging.captureWarnings(True)


def _log_of_thread(raised: threading.ExceptHookArgs) -> None:
    """Log what ends a thread."""
    if not issubclass(raised.exc_type, SystemExit):
        _log.error("a thread of the program has failed", exc_info=raised.exc_value)


def _log_unraisable(raised: sys.UnraisableHookArgs) -> None:
    """Log an error that cannot be raised to a caller, as in `__del__`."""
    _log.error("an exception was ignored", where=name_of(raised.object), exc_info=raised.exc_value)


def _write_record(
    handler: logging.Handler, least: int, name: str, level: int, fields: dict[str, Any], error: BaseException | None
) -> None:
    """Write a line of `fairq.log`, even if an app has configured `logging`."""
    if level >= least:
        raised = (type(error), error, error.__traceback__) if error is not None else None
        record = logging.LogRecord(name, level, "", 0, fields["event"], None, raised)
        record.fairq = fields
        handler.handle(record)


def _cut_values(_: object, __: str, line: Any) -> Any:
    """Cut long texts, such as a handler's error: a line that the log's writer has to cut is JSON no more."""
    for name, value in line.items():
        if isinstance(value, str) and len(value) > MAX_VALUE_CHARS // _CHARS_OF_ESCAPE:
            line[name] = _cut(value)
    return line


def _cut(text: str) -> str:
    shown, most = text, MAX_VALUE_CHARS
    while len(shown) > MAX_VALUE_CHARS + _MARK_CHARS or len(json.dumps(shown)) > 3 * MAX_VALUE_CHARS // 2:
        half = most // 2  # a traceback ends with what is wrong
        shown, most = f"{text[:half]} ... (cut, {len(text):,} characters) ... {text[-half:]}", half
    return shown


def _escape(_: object, __: str, line: Any) -> Any:
    """Escape the control characters of all texts, and indent tracebacks; what colours the line comes later."""
    return {in_line(str(name)): _escaped(name, value) for name, value in line.items()}


def _escaped(name: str, value: Any) -> Any:
    if name in _OF_LINES:
        return "    " + printable(str(value)).replace("\n", "\n    ")
    text = value if isinstance(value, str) else repr(value)
    return value if (escaped := in_line(text)) == text else escaped


def _fields_of_record(_: object, __: str, line: Any) -> Any:
    """Give a line of `fairq.log` back its event and fields."""
    return {**line, **getattr(line["_record"], "fairq", {})}
