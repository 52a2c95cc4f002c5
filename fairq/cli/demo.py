"""`fairq demo`: first-in-first-out and fair scheduling compared on real work."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from fairq.cli.options import Json
from fairq.cli.output import configure_logging
from fairq.cli.stopping import run_stoppable

Files = Annotated[
    int | None,
    Parameter(
        validator=Number(gte=120, lte=2000),
        help="Files to process, 120 to 2000 [default: as many as this machine reads in six seconds].",
    ),
]


Stay = Annotated[
    bool, Parameter(negative=(), help="Keep the server, dashboard and workers running, in the folder fairq-demo.")
]
End = Annotated[bool, Parameter(negative=(), help="Stop a demo that --stay kept running, and remove its folder.")]


def demo(*, files: Files = None, json: Json = False, stay: Stay = False, end: End = False) -> int:
    """Run the same real work first-in-first-out and then fair, and check that each task ran exactly once.

    Example: `fairq demo --stay`
    """
    configure_logging("error")
    if end:
        from fairq.demo import staying

        print("ended" if staying.end() else f"no demo stayed up in {staying.FOLDER.absolute()}")
        return 0
    from fairq.demo.run import run_demo

    return run_stoppable(partial(run_demo, as_json=json, file_count=files, stays=stay))
