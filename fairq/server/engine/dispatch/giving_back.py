"""Gives leases back that no worker here will settle."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from fairq.errors import FairqError
from fairq.model.places import queue_of
from fairq.model.tasks import Action
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")


async def give_back(store: Store, place: str, leases: Sequence[tuple[str, int, int]], action: Action) -> None:
    """Return leases (id, number, times taken over); if the store is unavailable they expire by themselves."""
    try:
        await store.give_back(place, leases, action)
    except FairqError as error:
        log.warning("cannot give leases back", queue=queue_of(place), count=len(leases), error=error.message)
