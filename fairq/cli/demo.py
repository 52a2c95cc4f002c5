"""`fairq demo`: the contrast, on real work."""

from __future__ import annotations

from fairq.cli.options import Json
from fairq.cli.output import configure_logging


def demo(*, json: Json = False) -> int:
    """Run the same real work first-in-first-out and then fair, and prove that nothing was lost or done twice."""
    configure_logging("error")
    from fairq.demo.run import run_demo

    return run_demo(as_json=json)
