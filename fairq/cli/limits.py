"""`fairq tenants limits` and `set-limits`, and the same of `fairq queues`: what bounds one tenant, or all."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json, print_table
from fairq.errors import BadRequest
from fairq.limits import LIMIT_RANGES

_PER_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_TOLD = {
    "cap": "tasks that run at once",
    "guaranteed": "tasks that run before others' do",
    "rate": "starts a second",
    "burst": "starts at once (none: a second's worth)",
    "queued": "tasks that wait",
    "queued_bytes": "bytes of their payloads",
    "delayed": "tasks that wait for their start",
    "dead": "dead letters (of more, the oldest go)",
}
Limit = Annotated[str | None, Parameter(show_default=False)]


def parse_limit(name: str, text: str) -> float | None:
    """Read a limit as people write it: a number, `none`, or `default`; a rate may be `300/min`. Raises: BadRequest."""
    if text in ("default", "none"):
        return None if text == "default" else 0
    number, slash, unit = text.partition("/")
    try:
        if name != "rate":
            return int(text)
        if slash and unit not in _PER_S:
            raise ValueError(unit)
        return float(number) / _PER_S[unit or "s"]
    except ValueError:
        wanted = "a number, perhaps with /s, /min, /h or /d" if name == "rate" else "a whole number"
        raise BadRequest(f"{name} must be {wanted}, none or default, not {text!r:.40}", field=name) from None


def change_limits(server: Server | None, queue: str, tenant: str | None, given: dict[str, str | None]) -> None:
    """Set the limits that were given, and print what they were."""
    changes = {name: parse_limit(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise BadRequest(f"name a limit to set: --{', --'.join(given).replace('_', '-')}", field="limits")
    body: dict[str, Any] = {"queue": queue, "tenant": tenant, "limits": changes}
    before = run_with(server or Server(), lambda client: client.request("set_limits", body))["before"]
    for name, value in changes.items():
        print(f"{tenant or 'all'} in {queue}: {name} {_say(before[name])} -> {_say(value)}")


def show_limits(server: Server | None, queue: str, tenant: str | None, json: bool) -> None:
    """Print what is set and what holds."""
    body = {"queue": queue, "tenant": tenant}
    found = run_with(server or Server(), lambda client: client.request("limits", body))
    if json:
        print_json(found)
        return
    rows = [
        {"limit": name, "set": _say(found["limits"][name]), "holds": _say(found["holds"][name]), "bounds": _TOLD[name]}
        for name in LIMIT_RANGES
    ]
    columns = {"limit": "limit", "set": "set here", "holds": "holds", "bounds": "what it bounds"}
    print_table(f"limits of {tenant or 'all tenants'} in {queue}", columns, rows, empty="")


def _say(value: float | None) -> str:
    return "default" if value is None else f"{value:.6g}" if value else "none"
