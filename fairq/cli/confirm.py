"""The question that commands ask when what they do cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from fairq.errors import BadRequest


def agrees(doing: str, ask: Callable[[], str]) -> bool:
    """Ask for confirmation. Raises: BadRequest if standard input is not a terminal."""
    if not sys.stdin.isatty():
        raise BadRequest(f"{doing} without a terminal needs --yes", field="yes")
    print(f"{ask()} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
