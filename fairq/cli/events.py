"""`fairq events`: the events of a tenant's tasks and batches, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import asdict

from fairq.cli.meter import say_ends
from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import in_line, print_json_line
from fairq.model.checks import MAX_BATCH
from fairq.model.texts import moment_of

if TYPE_CHECKING:
    from fairq.client.client import Client
    from fairq.model.events import Event


def events(
    queue: str,
    *,
    after: int = 0,
    follow: bool = False,
    tenant: str | None = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Print the events of a tenant's feed, oldest first: what happened to tasks enqueued with --events.

    With --json, each line is one JSON document.

    Example: `fairq events emails --tenant acme --follow`

    Parameters
    ----------
    queue
        Queue of the feed.
    after
        Id of the event to start after (0: start with the oldest one kept).
    follow
        Print new events as they come, until interrupted.
    tenant
        Tenant of the feed; operators must name it (default: the token's tenant).
    """

    async def work(client: Client) -> None:
        if follow:
            async for event in client.events(queue, after, tenant=tenant):
                _print(event, json)
            return
        begin, newest = after, None
        while newest is None or begin < newest:
            page = await client.read_events(queue, begin, count=MAX_BATCH, tenant=tenant)
            newest = page.newest if newest is None else newest  # later events are not waited for
            for event in page.events:
                _print(event, json)
            begin = page.events[-1].id if page.events else newest

    run_with(server, work)


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        print_json_line({name: value for name, value in asdict(event).items() if value not in ("", 0)})
    else:
        at = moment_of(event.at_ms).isoformat(" ", "milliseconds")
        attempt = f"attempt {event.attempt}" if event.attempt else ""
        detail = say_ends(event) if event.event == "batch_completed" else event.detail
        words = (str(event.id), at, event.event, event.task or event.batch, attempt, detail)
        print(*(in_line(word) for word in words if word), sep="  ", flush=True)
