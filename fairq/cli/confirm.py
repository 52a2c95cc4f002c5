"""Checks and questions before large changes: ids or --all, and a confirmation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

from cyclopts import Parameter

from fairq.errors import BadRequest

Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="Do not ask for confirmation.")]


def check_choice(ids: Sequence[str], everything: bool, others: str, are_given: bool) -> None:
    """Check that a command was given ids or --all; `others`: flags that only go with --all. Raises: BadRequest."""
    if ids and everything:
        raise BadRequest("give ids or --all, not both", field="ids")
    if not ids and not everything:
        raise BadRequest("missing ids: give ids or --all", field="ids")
    if are_given and not everything:
        raise BadRequest(f"{others} need --all", field="ids")


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
