"""A walk of the state machine in which claims come upon much of what costs most: late tasks, rates and groups."""

from __future__ import annotations

import random
from typing import Any

from .machine import MANY_IDS, NAMES, QueueMachine, Walk

WINDOWS: list[dict[str, Any]] = [{}, {"expires_in": 1}, {"expires_in": 1, "group": "g1"}, {"group": "g1"}]


class CostlyWalk(Walk):
    """Steps of the usual walk, and now and then all tenants have such tasks before a claim."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        self.spender = random.Random(seed)

    def step(self) -> None:
        """Claim what costs much, perhaps; then take a usual step."""
        if self.spender.random() < 0.2:
            self.spend()
        super().step()

    def spend(self) -> None:
        """Give tenants tasks, and perhaps a rate; some expire before the claim."""
        m, choose = self.machine, self.spender.choice
        if choose([True, False, False, False]):
            m.set_limits(name=choose(["", *NAMES]), limit="rate", choice=self.spender.randrange(6))
        for name in NAMES:
            ids = self.spender.choices(MANY_IDS, k=choose([1, 4]))
            m.enqueue(tenant=name, ids=ids, window=choose(WINDOWS))
        m.advance(ms=choose([1, 50]))
        m.claim(limit=6, seed=self.spender.getrandbits(16))
