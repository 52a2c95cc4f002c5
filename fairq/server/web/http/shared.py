"""Results that are computed once for all requests at about the same time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import trio
from attrs import Factory, define, field

T = TypeVar("T")

MAX_KEPT = 128


@define(eq=False)
class _Kept(Generic[T]):
    """The last result under a key."""

    at: float = float("-inf")
    begun: float = float("-inf")
    made: list[T] = field(factory=list)
    lock: trio.Lock = field(factory=trio.Lock)


@define(eq=False)
class Shared(Generic[T]):
    """Results, each shared for `kept_s` by all requests with its key; `at_once` are computed at a time."""

    kept_s: float
    at_once: int = 1
    _kept: OrderedDict[Hashable, _Kept[T]] = field(factory=OrderedDict, init=False)
    _making: trio.Semaphore = field(
        default=Factory(lambda self: trio.Semaphore(self.at_once), takes_self=True), init=False
    )

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]], since: float = float("-inf")) -> T:
        """Return what is made now, or was less than `kept_s` ago and begun at `since` or later. Raises as making."""
        oldest = trio.current_time() - self.kept_s
        for old in [old for old, each in self._kept.items() if each.at < oldest and not each.lock.locked()]:
            del self._kept[old]
        kept = self._kept.setdefault(key, _Kept())
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        async with kept.lock:
            if kept.begun < since or trio.current_time() - kept.at > self.kept_s:
                async with self._making:
                    begun = trio.current_time()
                    kept.made = [await make()]
                kept.begun, kept.at = begun, trio.current_time()
            return kept.made[0]
