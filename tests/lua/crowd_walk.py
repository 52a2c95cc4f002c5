"""A walk of the state machine among many tenants, of whom a claim looks at some only."""

from __future__ import annotations

import random

from .machine import QueueMachine, Walk

CROWD, MOST = [f"t{n}" for n in range(70)], 400  # tenants; stored tasks, beyond which none come


class CrowdWalk(Walk):
    """Tasks come, are claimed and end, and weights and the unit of service change: nothing else."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        self.chooser, self.enqueued = random.Random(seed), 0
        for name in CROWD:
            self.enqueue(name)

    def enqueue(self, tenant: str) -> None:
        """Give a tenant one to three tasks."""
        if len(self.machine.model.records) > MOST:
            return
        count = self.chooser.randint(1, 3)
        ids = [f"{tenant}/{self.enqueued + n}" for n in range(count)]
        self.enqueued += count
        self.machine.enqueue(tenant=tenant, ids=ids, window={})

    def step(self) -> None:
        """Do what is done most, or now and then something else."""
        m, choose = self.machine, self.chooser
        part = choose.random()
        if part < 0.5:
            m.claim(limit=choose.choice([1, 1, 3, 10, 30]), seed=choose.getrandbits(30))
        elif part < 0.7:
            m.settle(chosen=[("ack", back, None, "") for back in range(choose.randint(1, 30))], seed=0)
        elif part < 0.9:
            for name in choose.choices(CROWD, k=10):
                self.enqueue(name)
        elif part < 0.97:
            m.advance(ms=choose.choice([1, 7, 50]))
        elif part < 0.99:
            m.operate(verb="set_weight", tenant=choose.choice(CROWD), weight=choose.choice([300, 1000, 9000]))
        else:
            m.configure(name="share", choice=choose.randrange(2))
        self.keep()
