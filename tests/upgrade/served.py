"""A walk of the library has names of its own; these are the lines of its backup as a server would have stored them.

The library takes any id, opening hours, timings and payloads. Servers give tenants' names to ids and check the rest,
and so does a restore.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairq.store.backup_file import Writer, read_header, read_lines
from fairq.store.backup_lines import dump, load

ANY = "ada"  # the tenant of what is remembered without one


def write_served(file: Path, to: Path, queue: str) -> None:
    """Write a backup anew; one of its queues is a walk's."""
    with file.open("rb") as source, to.open("wb") as out:
        first, *rest = read_lines(source)
        lines = [load(line) for line in rest]
        of_queue = [line for line, _ in lines if line.get("queue") == queue]
        tenants = {line["id"]: line["tenant"] for line in of_queue if line["kind"] in ("task", "batch")}
        writer = Writer(out)
        writer.begin(read_header(first))
        for line, payload in lines:
            if line.get("queue") == queue:
                payload = _serve(line, payload, tenants)
            writer.add(dump(line, payload))
        writer.end()


def _serve(line: dict[str, Any], payload: bytes | None, tenants: dict[str, str]) -> bytes | None:
    def name(id: str) -> str:
        if "/" in id:
            return id
        of, plus, webhook = id.partition("+")
        tenant = tenants.get(id) or tenants.get(of) or tenants.get(of.partition("-")[0]) or ANY
        return f"{tenant}/{id}" + ("-1" if plus and "-" not in webhook else "")

    match line["kind"]:
        case "task" | "done" | "callback" | "batch" | "cancelling" | "result":
            line["id"] = name(line["id"])
        case "unique":
            line["value"] = name(line["value"])
        case "kept" if line["of"] == "r":
            line["id"] = name(line["id"])
        case "event" if line["fields"]:
            line["fields"]["id"] = name(line["fields"]["id"])
        case "opening_hours":
            line["text"] = "mon-fri 09:00-17:00 UTC"
        case "schedule":
            line["timing"] = {"every": line["timing"]["every"] or 1_500, "zone": "", "cron": ""}
    if batch := line.get("options", {}) and line["options"].get("batch"):
        line["options"]["batch"] = name(batch)
    if payload is None or (payload.isdigit() and len(payload) < 19):
        return payload
    return b'"%s"' % (b"x" * (len(payload) - 2))
