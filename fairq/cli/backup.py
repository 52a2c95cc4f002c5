"""`fairq backup`: the store's data in one file, as it was at one moment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from attrs import asdict
from cyclopts import Parameter

from fairq.cli.meter import meter
from fairq.cli.options import Json
from fairq.cli.output import configure_logging, print_json
from fairq.cli.stopping import run_stoppable
from fairq.cli.stores import StoreChoice, chosen

Program = Annotated[
    Path | None,
    Parameter(help="Program that loads the backup, a valkey-server or redis-server [default: fairq's own]."),
]


def backup(
    file: Path,
    *,
    store: StoreChoice | None = None,
    verify: Annotated[bool, Parameter(help="Read the backup afterwards, and count its queues and tasks.")] = True,
    server_program: Program = None,
    as_json: Json = False,
) -> None:
    """Write a backup of the store to a file, while servers run: lines of JSON, which every later version reads.

    The backup shows the store at one moment: it has all tasks acknowledged before it began, and each queue is
    consistent. (The nodes of a cluster follow one another.) It holds payloads and tokens' hashes, so only its owner may
    read the file. Meanwhile a separate Valkey takes as much memory as the store, and as much disk (the file not
    included). Search the file with `zcat FILE | grep ...`.

    Example: `fairq backup nightly.jsonl.gz --store redis://127.0.0.1:6379/0`
    """
    from fairq.store import backup as backups

    configure_logging("critical")
    folder = file.absolute().parent

    async def main() -> dict[str, object]:
        with backups.new_file(file) as out, meter("backup") as show:
            async with chosen(store or StoreChoice()) as url:
                made = await backups.back_up(url, out, folder, lambda n: show(f"{n:,} lines", 0, 0), server_program)
        return asdict(made) | (asdict((await backups.verify(file)).counts) if verify else {})

    result = run_stoppable(main) | {"bytes": file.stat().st_size, "verified": verify}
    if as_json:
        print_json(result)
    elif result["verified"]:
        print(f"{file}: {result['bytes']:,} bytes, verified; queues: {result['queues']:,}, tasks: {result['tasks']:,}")
    else:
        print(f"{file}: {result['bytes']:,} bytes, not verified")
