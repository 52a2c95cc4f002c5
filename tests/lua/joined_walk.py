"""A walk of the state machine in which most claims follow an enqueue in one call."""

from __future__ import annotations

import random

from .machine import MANY_IDS, NAMES, QueueMachine, Walk


class JoinedWalk(Walk):
    """Steps of the usual walk, and every other time an enqueue and a claim before it."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        self.joiner = random.Random(seed)

    def step(self) -> None:
        """Enqueue and claim, perhaps; then take a usual step."""
        choose = self.joiner
        if choose.random() < 0.5:
            self.machine.enqueue_and_claim(
                tenant=choose.choice(NAMES),
                ids=choose.choices(MANY_IDS, k=choose.randint(1, 3)),
                window={} if choose.random() < 0.5 else self.window(),
                limit=choose.randint(1, 6),
                seed=choose.getrandbits(16),
            )
        super().step()
