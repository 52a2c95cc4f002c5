"""The slots that workers of other servers have for each queue, as those servers have told some seconds ago."""

from __future__ import annotations

import random

import trio
from attrs import define, field

_FORGET_S = 60.0  # after which the slots of a server that has sent nothing are forgotten


@define(eq=False)
class ServerSlots:
    """Slots by server and queue: whole, and divided among each worker's queues (those of draining workers left out)."""

    _told: dict[str, tuple[float, dict[str, list[float]]]] = field(factory=dict, init=False)  # when, and slots

    def hear(self, server: str, slots: dict[str, list[float]]) -> bool:
        """Note the slots of a server, whole and divided, by queue; returns whether the server was unknown."""
        now = trio.current_time()
        self._told = {name: each for name, each in self._told.items() if each[0] > now - _FORGET_S}
        is_new = server not in self._told
        self._told[server] = now, slots
        return is_new

    def whole(self, queue: str) -> int:
        """Count the slots of all other servers for a queue."""
        return int(sum(whole for whole, _ in self._of(queue).values()))

    def divided(self, queue: str) -> float:
        """Count them divided, without those of draining workers."""
        return sum(divided for _, divided in self._of(queue).values())

    def queues(self) -> set[str]:
        """Name the queues that workers of other servers take tasks of."""
        since = trio.current_time() - _FORGET_S
        return {queue for at, slots in self._told.values() if at > since for queue, (_, has) in slots.items() if has}

    def choose(self, queue: str, slots: int) -> str:
        """Choose a server whose workers have this many slots for a queue, busy or free; empty if none is known."""
        able = {name: whole for name, (whole, _) in self._of(queue).items() if whole >= max(1, slots)}
        return random.choices(list(able), list(able.values()))[0] if able else ""

    def _of(self, queue: str) -> dict[str, list[float]]:
        """Return the slots for a queue, whole and divided, by server."""
        if not self._told:
            return {}
        since = trio.current_time() - _FORGET_S
        return {name: slots[queue] for name, (at, slots) in self._told.items() if at > since and queue in slots}
