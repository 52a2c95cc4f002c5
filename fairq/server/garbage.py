"""Garbage collection without long pauses: a collection holds up everybody, and is as long as what it looks at.

A full one looks at every object of every connection: 0.3 s where there are 10,000. But a young one may be as long:
Python counts allocations less deallocations, so while old connections go and new ones come nothing is collected, until
all that has come is, at once. Here young objects are looked at four times a second, a full collection comes about once
an hour, and what it has seen is not looked at again. A connection that ends leaves no cycles (Connection.unlink).
"""

from __future__ import annotations

import gc

import trio

_YOUNG_S = 0.25
_COLLECT_AFTER = (10_000, 50, 14_400)  # allocations; collections of the youngest; those of the young: an hour of them


def _freeze_what_stays(phase: str, told: dict[str, int]) -> None:
    if phase == "stop" and told["generation"] == 2:
        gc.freeze()


async def collect_young() -> None:
    """Take over from Python when to collect, for the whole process, until cancelled."""
    gc.freeze()  # what is loaded by now stays
    gc.callbacks.append(_freeze_what_stays)
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        while True:
            await trio.sleep(_YOUNG_S)
            gc.collect(1)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(_freeze_what_stays)
        gc.unfreeze()
