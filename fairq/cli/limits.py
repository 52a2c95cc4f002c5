"""`limits` and `set-limits` of `fairq tenants` and `fairq queues`: limits of one tenant, or of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
from attrs import asdict
from cyclopts import Parameter

from fairq.cli.changes import change
from fairq.cli.options import Server, run_with
from fairq.cli.output import print_json, print_rows
from fairq.errors import BadRequest
from fairq.model.limits import BOUNDS, Limits

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient

_PER_S = {"s": 1, "min": 60, "h": 3600, "d": 86_400}
_UNITS = {"rate": "/s", "stored_bytes": " bytes"}


def _option(meaning: str) -> Any:
    return attrs.field(default=None, type=Annotated[str | None, Parameter(help=meaning)])  # type: ignore[call-overload]


_OPTIONS = {name: _option(meaning) for name, meaning in BOUNDS.items()} | {
    "rate": _option(f"{BOUNDS['rate'][:-1]}; or as 300/min, 1000/h, 5/d.")
}
GivenLimits = attrs.make_class("GivenLimits", _OPTIONS, frozen=True)
Parameter(name="*")(GivenLimits)  # each is a number, `none`, or `default` (the limit for all tenants)


def parse_percent(name: str, text: str) -> int:
    """Read a part of the slots, `20%` or `0.2`; returns a whole percentage. Raises: BadRequest."""
    number, sign, rest = text.partition("%")
    try:
        percent = float(number) * (1 if sign else 100)
    except ValueError:
        percent = -1.0
    if rest or not 0 <= percent <= 100 or abs(percent - round(percent)) > 1e-9:
        raise BadRequest(f"{name} must be a whole percentage, such as 20% or 0.2, not {text!r:.40}", field=name)
    return round(percent)


def parse_limit(name: str, text: str) -> float | None:
    """Read a limit: a number, `none` (0) or `default` (None); a rate may be `300/min`. Raises: BadRequest."""
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
        wanted = "a number, optionally with /s, /min, /h or /d" if name == "rate" else "a whole number"
        raise BadRequest(f"{name} must be {wanted}, none or default, not {text!r:.40}", field=name) from None


def change_limits(server: Server | None, queue: str, tenant: str | None, given: Any, if_version: str | None) -> None:
    """Set the given limits, and print their old and new values."""
    texts = asdict(given or GivenLimits())
    changes: dict[str, Any] = {name: parse_limit(name, text) for name, text in texts.items() if text is not None}
    if not changes:
        raise BadRequest(
            f"missing limit: give at least one of --{', --'.join(texts).replace('_', '-')}", field="limits"
        )

    async def work(client: OperatorClient) -> Limits:
        return await client.set_limits(queue, tenant, if_version=if_version, **changes)

    previous = asdict(change(server, queue, tenant, work))
    for name, value in changes.items():
        print(f"{tenant or 'all'} in {queue}: {name} {_say(name, previous[name])} -> {_say(name, value)}")


def show_limits(server: Server | None, queue: str, tenant: str | None, json: bool) -> None:
    """Print the limits set for a tenant (or all), and the limits in force."""
    found = asdict(run_with(server, lambda client: client.limits(queue, tenant)))
    if json:
        print_json(found)
        return
    rows = [
        {"limit": name, "set": _say(name, found["limits"][name]), "holds": _say(name, holds), "bounds": BOUNDS[name]}
        for name, holds in found["holds"].items()
    ]
    columns = {"limit": "limit", "set": "set here", "holds": "holds", "bounds": "what it bounds"}
    print_rows(f"limits of {tenant or 'all tenants'} in {queue}", columns, rows, empty="")
    print(f"version {found['version']}")


def _say(name: str, value: float | None) -> str:
    unit = _UNITS.get(name, "")
    return "default" if value is None else f"{round(value, 6):,.15g}{unit}" if value else "none"
