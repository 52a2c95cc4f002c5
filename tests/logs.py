"""What the SDK logs through the standard library, as data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Keeper(logging.Handler):
    def __init__(self, lines: list[dict[str, Any]]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line's fields, its level, and its text."""
        fields = getattr(record, "fairq", {"event": record.getMessage()})
        error = record.exc_info[1] if record.exc_info else None
        more = {"log_level": record.levelname.lower(), "text": record.getMessage(), "raised": error}
        self.lines.append({**fields, **more})


@contextmanager
def captured_logs() -> Iterator[list[dict[str, Any]]]:
    """Capture what loggers below `fairq` log while the block lasts, all levels."""
    lines: list[dict[str, Any]] = []
    logger, keeper = logging.getLogger("fairq"), _Keeper(lines)
    level = logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(level)
