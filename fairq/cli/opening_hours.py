"""`fairq tenants hours` and `fairq queues hours`: opening hours of a tenant, or of the whole queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from attrs import asdict
from cyclopts import Parameter

from fairq.cli.changes import change
from fairq.cli.options import Server, run_with
from fairq.cli.output import local_time, print_json
from fairq.errors import BadRequest
from fairq.model.texts import moment_of, say_span

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.model.operator_views import HeldLimits

Windows = Annotated[
    str | None,
    Parameter(help='Opening hours: "12:00-15:00 Europe/Copenhagen", or "mon-fri 8:00-12:00, sat 22:00-06:00" (UTC).'),
]
Always = Annotated[bool, Parameter(negative=(), help="Remove the opening hours: always open.")]


def show_opening_hours(
    server: Server | None,
    queue: str,
    tenant: str | None,
    text: str | None,
    always: bool,
    if_version: str | None,
    json: bool,
) -> None:
    """Print the opening hours of a tenant or a queue; set them first if `text` or `always` is given."""
    if text is not None and always:
        raise BadRequest("give opening hours or --always, not both", field="opening_hours")
    if text is not None and not text:
        raise BadRequest("opening hours must not be empty; --always removes them", field="opening_hours")

    async def set_and_read(client: OperatorClient) -> HeldLimits:
        await client.set_opening_hours(queue, text or "", tenant, if_version=if_version)
        return await client.limits(queue, tenant)

    if text or always:
        found = asdict(change(server, queue, tenant, set_and_read))
    else:
        found = asdict(run_with(server, lambda client: client.limits(queue, tenant)))
    if json:
        print_json({name: found[name] for name in ("opening_hours", "now_ms", "hours_version")})
        return
    rows = {row["of"]: row for row in found["opening_hours"]}
    if tenant is not None:
        _print(f"{tenant} in {queue}", rows.get("tenant"), found["now_ms"])
    if tenant is None or "queue" in rows:
        _print(f"all of {queue}", rows.get("queue"), found["now_ms"])


def _print(of_whom: str, row: dict[str, Any] | None, now_ms: int) -> None:
    if row is None:
        print(f"{of_whom}: always open")
        return
    until = local_time(moment_of(row["changes_at_ms"]), row["text"].rpartition(" ")[2])
    print(f"{of_whom}: {row['text']}")
    print(f"  {'open' if row['is_open'] else 'closed'} until {until}, for {say_span(row['changes_at_ms'] - now_ms)}")
