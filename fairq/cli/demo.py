"""`fairq demo`: first-in-first-out and fair scheduling compared on real work."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from fairq.cli.options import Json
from fairq.cli.output import configure_logging

Files = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=120, lte=2000),
        help="Files to process, 120 to 2000 [default: as many as this machine reads in six seconds].",
    ),
]


def demo(*, files: Files = None, json: Json = False) -> int:
    """Run the same real work first-in-first-out and then fair, and check that each task ran exactly once.

    Example: `fairq demo --files 200`
    """
    configure_logging("error")
    from fairq.demo.run import run_demo

    return run_demo(as_json=json, file_count=files)
