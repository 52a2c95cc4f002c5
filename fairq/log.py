"""Logs of the SDK, through the standard library's `logging`, which the program configures as it likes.

A line is an event and its fields. They stand in the message, `task failed task=a1 queue=emails`, and as `fairq` in the
record, a dict, for formatters that write JSON.

The log of `fairq worker` is the command's own: `write_by` has the lines written there, past `logging`. So no app that
configures `logging`, or disables loggers, silences them, and none doubles them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # as in logging, which is imported with the first line
_STACK_LEVEL = 3  # the caller's line, not ours

Write = Callable[[str, int, dict[str, Any], BaseException | None], None]
_write: Write | None = None


def write_by(write: Write | None) -> None:
    """Set the function that writes all lines, from the logger's name, the level, the fields and an exception."""
    global _write
    _write = write


def shown(value: object) -> str:
    """Write a field's value so that it is one word, or quoted: it cannot look like another field or line."""
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)


class Log:
    """A logger of lines with fields: `log.info("task", queue="emails")`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: logging.Logger | None = None

    def _open(self) -> logging.Logger:
        import logging

        self._logger = logging.getLogger(self._name)
        return self._logger

    def debug(self, event: str, **fields: Any) -> None:
        """Log what helps to find a fault."""
        self._log(DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Log what happens as it should."""
        self._log(INFO, event, fields)

    def warning(self, event: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log what someone should look at; with the traceback of an exception, if one is given."""
        self._log(WARNING, event, fields, exc_info)

    def error(self, event: str, *, exc_info: BaseException | None = None, **fields: Any) -> None:
        """Log what went wrong; with the traceback of an exception, if one is given."""
        self._log(ERROR, event, fields, exc_info)

    def _log(self, level: int, event: str, fields: dict[str, Any], exc_info: BaseException | None = None) -> None:
        if _write is not None:
            _write(self._name, level, {"event": event, **fields}, exc_info)
            return
        logger = self._logger or self._open()
        if logger.isEnabledFor(level):
            text = event + "".join(f" {name}=%s" for name in fields)
            more = {"fairq": {"event": event, **fields}}
            values = map(shown, fields.values())
            raised = None if exc_info is None else (type(exc_info), exc_info, exc_info.__traceback__)  # it may be false
            logger.log(level, text, *values, extra=more, exc_info=raised, stacklevel=_STACK_LEVEL)


def name_of(function: object) -> str:
    """Name a function for people: what a partial holds, or an object by its class."""
    while not isinstance(name := getattr(function, "__qualname__", None), str):
        function = getattr(function, "__wrapped__", function.func) if isinstance(function, partial) else type(function)
    return name[:200]
