"""`fairq migrate`: takes a store's data to this fairq's version, ahead of its servers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import trio

from fairq.cli.output import configure_logging
from fairq.cli.stores import StoreChoice, chosen

if TYPE_CHECKING:
    from fairq.store.migrations import Migration


def migrate(*, store: StoreChoice | None = None) -> int:
    """Migrate the data of a store to this fairq's version.

    Servers do that by themselves, in the background, when no older server runs; this does it at once. If interrupted,
    run it again, and it continues. Older servers cannot use the data afterwards: `fairq doctor` says what will be done,
    and run `fairq backup` first. The exit code is 1 while older servers run, or a server is doing it.

    Example: `fairq migrate --store redis://127.0.0.1:6379/0`
    """
    configure_logging("critical")
    return trio.run(_migrate, store or StoreChoice())


async def _migrate(choice: StoreChoice) -> int:
    from fairq.store import migrations
    from fairq.store.opening import open_store

    def show(migration: Migration, queue: str) -> None:
        print(f"queue {queue} is migrated to version {migration.number}")

    async with chosen(choice) as url, open_store(url) as store:
        outcome, state = await migrations.migrate(store, show), await migrations.data_state(store.connection.call)
    if outcome == "done" and state:
        print(f"the data has version {state.version}")
        return 0
    why = "servers of an older version run: stop them first" if outcome == "waits" else "a server migrates it now"
    print(f"fairq: {why}", file=sys.stderr)
    return 1
