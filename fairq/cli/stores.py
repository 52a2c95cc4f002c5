"""The store that a command works on itself: by its URL, or the embedded one of a data directory."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import trio
from attrs import frozen
from cyclopts import Parameter

from fairq.errors import SettingsError

PATIENCE_S = 2.0  # after which the command prints what it waits for


@Parameter(name="*")
@frozen
class StoreChoice:
    """The options that choose a store."""

    store: Annotated[
        str | None,
        Parameter(env_var="FAIRQ_STORE", help="URL of the store, as for `fairq serve` [default: the embedded one]."),
    ] = None
    data_dir: Annotated[
        Path, Parameter(env_var="FAIRQ_DATA_DIR", help="Directory of the embedded store, if no URL is given.")
    ] = Path("fairq-data")


@asynccontextmanager
async def chosen(choice: StoreChoice, *, may_make: bool = False) -> AsyncIterator[str]:
    """Yield the URL of the store; the embedded one runs while the context lasts, if no server runs it, and has read
    its data.

    `may_make`: a data directory without a store gets one. Raises: SettingsError, Unavailable.
    """
    from fairq.store import embedded

    if choice.store:
        yield choice.store
        return
    if not may_make and not embedded.has_store(choice.data_dir):
        raise SettingsError(
            f"there is no store in {choice.data_dir.absolute()}; `fairq serve` makes one: start it first, or name the"
            " server's store by --data-dir or --store",
            field="store",
        )
    async with _running(choice.data_dir):
        with trio.move_on_after(PATIENCE_S) as patience:
            await embedded.wait_loaded(choice.data_dir)
        if patience.cancelled_caught:
            print("fairq: the store is reading its data; waiting for it", file=sys.stderr)
            await embedded.wait_loaded(choice.data_dir)
        yield embedded.store_url(choice.data_dir)


@asynccontextmanager
async def _running(data_dir: Path) -> AsyncIterator[None]:
    """See that the embedded store runs while the context lasts: a server's, or else one of its own."""
    from fairq.store import embedded

    if await embedded.is_running(data_dir):
        yield
        return
    async with embedded.embedded_store(data_dir):
        yield
