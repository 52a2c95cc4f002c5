"""Migrating the data, once no older server runs: fairq/store/migrations.py has the theory."""

from __future__ import annotations

import random

import structlog
import trio

from fairq.errors import FairqError
from fairq.store.migrations import Migration, migrate
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

AGAIN_S = 5.0


async def migrate_in_time(store: Store) -> None:
    """Try until the data has this build's version."""
    logged = ""
    while True:
        try:
            outcome = await migrate(store, _log)
        except FairqError as error:
            outcome = error.message
        if outcome == "done":
            return
        if outcome != logged:
            log.info("the data is not migrated yet", why=outcome)
            logged = outcome
        await trio.sleep(AGAIN_S * random.uniform(0.5, 1.0))


def _log(migration: Migration, queue: str) -> None:
    log.info("migrated", queue=queue, to=migration.number)
