"""Garbage collection without long pauses: a collection blocks the process for as long as it looks at objects.

A full collection looks at every object of every connection: 0.3 s for 10,000 connections. A young collection may take
as long: Python counts allocations minus deallocations, so while old connections end and new ones begin nothing is
collected, and then all new objects at once. Here young objects are collected four times a second, a full collection
runs about once an hour, and objects that survive it are frozen: they are not looked at again. A connection that ends
leaves no cycles (Connection.unlink).
"""

from __future__ import annotations

import gc

import trio

_YOUNG_S = 0.25
_THRESHOLDS = (10_000, 50, 14_400)  # the last: full collections, after an hour of collect(1)


def _freeze_what_stays(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


async def control_collection() -> None:
    """Control the garbage collection of the whole process until cancelled."""
    gc.freeze()  # objects loaded until now are permanent
    gc.callbacks.append(_freeze_what_stays)
    previous = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        while True:
            await trio.sleep(_YOUNG_S)
            gc.collect(1)
    finally:
        gc.set_threshold(*previous)
        gc.callbacks.remove(_freeze_what_stays)
        gc.unfreeze()
