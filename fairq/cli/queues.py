"""`fairq queues`: counts, settings, pauses."""

from __future__ import annotations

from typing import Any

from cyclopts import App

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.errors import BadRequest

queues = App(name="queues", help="List queues, change their settings, pause and resume them.")

_COLUMNS = {
    "queue": "queue",
    "ready": "ready",
    "delayed": "delayed",
    "leased": "leased",
    "dead": "dead",
    "done": "done",
    "expired": "expired",
    "workers": "workers here",
    "share": "share",
    "is_paused": "paused",
}


@queues.command(name="list")
def list_(*, json: Json = False, server: Server | None = None) -> None:
    """List all queues."""
    rows = run_with(server or Server(), lambda client: client.request("queues"))["queues"]
    if json:
        print_json(rows)
    else:
        flat = [{**row, **row["settings"]} for row in rows]
        print_table("queues", _COLUMNS, flat, empty="there are no queues yet; the first enqueue makes one")


@queues.command(name="set")
def set_(queue: str, *settings: str, server: Server | None = None) -> None:
    """Change settings of a queue, as name=value.

    Parameters
    ----------
    settings
        share=time|count, lease_ms, max_attempts, retry_base_ms, retry_cap_ms, dead_keep_ms, dead_keep.
    """
    changes: dict[str, Any] = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise BadRequest(f"write name=value, not {setting!r}", field="settings")
        changes[name.replace("-", "_")] = int(value) if value.isdecimal() else value
    body = {"queue": queue, "settings": changes}
    run_with(server or Server(), lambda client: client.request("configure", body))
    print(f"{queue}: {', '.join(settings)}")


@queues.command
def pause(queue: str, *, server: Server | None = None) -> None:
    """Hold back all tasks of a queue; those that run go on, and new ones are still taken."""
    run_with(server or Server(), lambda client: client.request("pause", {"queue": queue}))
    print(f"{queue}: paused")


@queues.command
def resume(queue: str, *, server: Server | None = None) -> None:
    """Undo pause."""
    run_with(server or Server(), lambda client: client.request("resume", {"queue": queue}))
    print(f"{queue}: resumed")
