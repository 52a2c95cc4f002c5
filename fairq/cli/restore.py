"""`fairq restore`: a backup, put into an empty store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from attrs import asdict
from cyclopts import Parameter

from fairq.cli.meter import meter
from fairq.cli.options import Json
from fairq.cli.output import configure_logging, print_json
from fairq.cli.stopping import run_stoppable
from fairq.cli.stores import StoreChoice, chosen
from fairq.errors import BadRequest, SettingsError


def _read_partitions(texts: Sequence[str]) -> dict[str, int]:
    """Read numbers of partitions by queue. Raises: BadRequest."""
    found: dict[str, int] = {}
    for text in texts:
        queue, is_given, count = text.partition("=")
        if not is_given or not (count.isdecimal() and count.isascii()) or len(count) > 9:
            raise BadRequest(f"partitions: {text[:80]!r} must be QUEUE=NUMBER, as emails=12", field="partitions")
        if queue in found:
            raise BadRequest(f"partitions: queue {queue[:80]} is given twice", field="partitions")
        found[queue] = int(count)
    return found


def restore(
    file: Path,
    *,
    store: StoreChoice | None = None,
    replace: Annotated[bool, Parameter(negative=(), help="Delete fairq's data in the store first.")] = False,
    check: Annotated[bool, Parameter(negative=(), help="Only read the backup and count; change nothing.")] = False,
    partitions: Annotated[
        list[str] | None,
        Parameter(
            negative=(), help="Give a queue another number of partitions, as `emails=12`; for each queue, repeat it."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Put a backup into an empty store: a single one or a cluster, Valkey or Redis, regardless of its origin.

    The whole backup is read first, and each line checked: a bad one is refused by its number and field, and nothing is
    changed. Then its data is written, and each queue is repaired. Until the restore has ended, no server starts on the
    store. Tasks that ran when the backup was made run again, and so do tasks done since. Tasks enqueued since are gone.

    Example: `fairq restore nightly.jsonl.gz --store redis://127.0.0.1:6379/0 --partitions imports=12`
    """
    from fairq.store import backup as backups

    configure_logging("critical")
    if not file.is_file():
        what = "is not a file, and a backup is read twice: write it to one first" if file.exists() else "does not exist"
        raise SettingsError(f"{file} {what}", field="file")

    asked = _read_partitions(partitions or ())

    async def main() -> backups.Contents:
        if check:
            return await backups.verify(file, asked)
        with meter("restore") as show:
            async with chosen(store or StoreChoice(), may_make=True) as url:
                return await backups.restore(
                    file, url, replace=replace, partitions=asked, show=lambda count: show(f"{count:,} lines", 0, 0)
                )

    found = run_stoppable(main)
    counts = found.counts
    if as_json:
        print_json({**asdict(found.header), **asdict(counts), "restored": not check})
    else:
        done = "can be restored" if check else "restored"
        print(f"{file}: {done}, of {found.header.made_at}; queues: {counts.queues:,}, tasks: {counts.tasks:,}")
