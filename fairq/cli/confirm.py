"""The question that commands ask before they do what cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from fairq.errors import BadRequest

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="Do not ask for confirmation.")]


def agrees(yes: bool, doing: str, ask: Callable[[], str], otherwise: str) -> bool:
    """Ask for confirmation unless `yes`; without it, say `otherwise`.

    Raises: BadRequest if standard input is not a terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise BadRequest(f"{doing} without a terminal needs --yes", field="yes")
    print(f"{ask()} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print(otherwise, file=sys.stderr)
    return False
