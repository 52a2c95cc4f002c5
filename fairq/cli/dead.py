"""`fairq dead`: tasks that failed permanently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attrs import asdict, frozen
from cyclopts import App, Parameter

from fairq.cli.confirm import Yes, agrees, check_choice
from fairq.cli.meter import meter
from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import columns_of, print_fields, print_json, print_rows, printable
from fairq.client.requests import check_whole
from fairq.errors import BadRequest, NotFound
from fairq.model.texts import say_away

if TYPE_CHECKING:
    from fairq.client.client import Client
    from fairq.client.dead_letters import DeadLetters
    from fairq.model.dead_letters import Sweep
    from fairq.model.option_tables import DeadLetterFilter
    from fairq.model.places import AwayPartition

    Sweeps = AsyncGenerator[Sweep, None]

dead = App(name="dead", help="List, show, replay and purge dead letters. Tenants see their own, operators see all.")

_COLUMNS = columns_of("id", "tenant", "reason", "attempts", "lost_leases", "died_at_ms", "error")
_RARE = ("lost_leases",)
_DONE = {"replay": "replayed", "purge": "purged"}
All = Annotated[bool, Parameter(name="--all", negative=(), help="Apply to all dead letters that match the filters.")]
# With a unit, unlike other spans: that of `--older-than 90` would be guessed, and letters be deleted by it.
Older = Annotated[timedelta | None, Parameter(help="Only dead letters older than this: 90s, 30m, 12h, 7d.")]
Younger = Annotated[timedelta | None, Parameter(help="Only dead letters younger than this: 90s, 30m, 12h, 7d.")]


@Parameter(name="*")
@frozen
class Filter:
    """Select the dead letters that match all of these."""

    tenant: Annotated[str | None, Parameter(help="Only dead letters of this tenant.")] = None
    reason: Annotated[
        Literal["exhausted", "rejected", "expired", "lease_lost"] | None,
        Parameter(help="Only dead letters that died for this reason."),
    ] = None
    error: Annotated[str | None, Parameter(help="Only dead letters with an error that contains this text.")] = None
    older_than: Older = None
    younger_than: Younger = None

    def pack(self) -> DeadLetterFilter:
        """Return the filter as the SDK's keyword arguments."""
        return {name: word for name, word in asdict(self).items() if word is not None}  # type: ignore[return-value]


@dead.command(name="list")
def list_(
    queue: str, *, which: Filter | None = None, limit: int = 100, json: Json = False, server: Server | None = None
) -> None:
    """List the dead letters of a queue, oldest first; --json includes their payloads.

    Partitions that do not answer are named; --json fails then.

    Example: `fairq dead list emails --error 503 --younger-than 1d`

    Parameters
    ----------
    limit
        Dead letters to list at most.
    """
    if limit < 1:
        raise BadRequest("limit must be at least 1", field="limit")

    others = 0  # that do not match
    away: list[AwayPartition] = []

    async def work(client: Client) -> tuple[list[dict[str, Any]], int]:
        nonlocal others, away
        rows: list[dict[str, Any]] = []
        letters = client.dead_letters(queue).pages(count=min(limit, 500), brief=not json, **(which or Filter()).pack())
        async with aclosing(letters) as pages:
            async for page in pages:
                rows += [asdict(letter) for letter in page.letters]
                away += page.away
                if len(rows) >= limit:
                    break
        if json:
            check_whole(queue, away)
        left = page.left + len(rows[limit:])
        if not rows and which is not None:
            first = await client.dead_letters(queue).page(count=1, brief=True)
            others = len(first.letters) + first.left
        return rows[:limit], left

    rows, left = run_with(server, work)
    empty = f"none of the {others:,} dead letters of {queue} match" if others else f"queue {queue} has no dead letters"
    print_rows(f"dead letters of {queue}", _COLUMNS, rows, empty=empty, rare=_RARE, json=json)
    if left and not json:
        print(f"{left:,} more: raise --limit or narrow the filter")
    if away:
        print(say_away(queue, away))


@dead.command
def show(queue: str, id: str, *, json: Json = False, server: Server | None = None) -> None:
    """Show one dead letter: payload, attempts, times, error and traceback.

    Example: `fairq dead show emails acme/a1`
    """
    letter = asdict(run_with(server, lambda client: client.dead_letters(queue).show(id)))
    traceback = "" if json else letter.pop("traceback")
    print_fields(f"dead letter {id} of {queue}", letter, json=json)
    if traceback:
        print(printable(traceback))


def _report(verb: str, changed: int, gone: int, batch_gone: int, json: bool) -> None:
    done = _DONE[verb]
    if json:
        print_json({done: changed, "gone": gone} | ({"batch_gone": batch_gone} if batch_gone else {}))
        return
    print(f"{done}: {changed:,}" + (f", gone already: {gone:,}" if gone else ""))
    if batch_gone:
        print(f"{batch_gone:,} of them no longer count for a batch: theirs is gone, and will not call back")


def _on_named(verb: str, queue: str, ids: tuple[str, ...], json: bool, server: Server | None) -> None:
    """Apply a verb to the named dead letters. Raises: NotFound afterwards, if some ids are not dead letters."""

    async def work(client: Client) -> list[str]:
        letters = client.dead_letters(queue)
        return list(await (letters.replay(ids) if verb == "replay" else letters.purge(ids)))

    outcomes = run_with(server, work)
    missing = [id for id, outcome in zip(ids, outcomes, strict=True) if outcome == "gone"]
    _report(verb, len(ids) - len(missing), len(missing), outcomes.count("batch_gone"), json)
    if missing:
        raise NotFound(f"not dead letters of {queue}: {' '.join(missing)}", field="ids")


def _on_all(verb: str, queue: str, sweep: Callable[[DeadLetters], Sweeps], json: bool, server: Server | None) -> None:
    """Apply a verb to all dead letters that match; prints how many were changed, also when interrupted."""
    changed = gone = batch_gone = 0

    async def work(client: Client) -> None:
        nonlocal changed, gone, batch_gone
        with meter(f"{verb} {queue}") as show_bar:
            async with aclosing(sweep(client.dead_letters(queue))) as steps:
                async for step in steps:
                    changed, gone, batch_gone = step.changed, step.gone, step.batch_gone
                    done, total = changed + gone, changed + gone + step.left
                    show_bar(f"{done:,} of {total:,}", done, total)

    try:
        run_with(server, work)
    finally:
        _report(verb, changed, gone, batch_gone, json)


@dead.command
def replay(
    queue: str,
    *ids: str,
    everything: All = False,
    which: Filter | None = None,
    rate: float | None = None,
    json: Json = False,
    server: Server | None = None,
) -> None:
    """Give dead letters a fresh set of attempts, within their tenants' shares; ctrl-C leaves the rest dead.

    Example: `fairq dead replay emails --all --tenant acme --rate 50`

    Parameters
    ----------
    rate
        Dead letters per second at most, with --all (default: no limit).
    """
    check_choice(ids, everything, "filters and --rate", which is not None or rate is not None)
    if ids:
        _on_named("replay", queue, ids, json, server)
        return
    words = (which or Filter()).pack()
    _on_all("replay", queue, lambda letters: letters.replay_all(rate=rate, **words), json, server)


@dead.command
def purge(
    queue: str,
    *ids: str,
    everything: All = False,
    which: Filter | None = None,
    yes: Yes = False,
    json: Json = False,
    server: Server | None = None,
) -> int:
    """Delete dead letters permanently.

    Example: `fairq dead purge emails --all --older-than 30d`
    """
    check_choice(ids, everything, "filters", which is not None)
    if ids:
        _on_named("purge", queue, ids, json, server)
        return 0
    words = (which or Filter()).pack()

    def ask() -> str:
        first = run_with(server, lambda client: client.dead_letters(queue).page(count=1, brief=True, **words))
        return f"Purge up to {len(first.letters) + first.left:,} dead letters of {queue}?"

    if not agrees(yes, "purging all matches", ask, "nothing was purged"):
        return 1
    _on_all("purge", queue, lambda letters: letters.purge_all(**words), json, server)
    return 0
