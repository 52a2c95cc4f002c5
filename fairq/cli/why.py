"""`fairq why`: why a task waits, and when it may start."""

from __future__ import annotations

from attrs import asdict

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, printable
from fairq.model.why_text import say_why


def why(queue: str, task_id: str, *, json: Json = False, server: Server | None = None) -> None:
    """Say why a task waits, and when it may start. Operators name the task as `<tenant>/<id>`.

    Example: `fairq why emails acme/a1`
    """
    found = run_with(server, lambda client: client.why(queue, task_id))
    if json:
        print_json(asdict(found))
    else:
        print(*(printable(line) for line in say_why(found)), sep="\n")
