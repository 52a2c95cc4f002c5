"""A walk of the state machine through queues whose slots are all in use: what the reserve is about."""

from __future__ import annotations

from typing import Any

from .machine import NAMES, RESERVES, SLOTS, QueueMachine, Walk

TASKS = [f"id{n}" for n in range(10, 80)]


class FullWalk(Walk):
    """Workers claim whenever they have a slot; tenants come and go, and so do workers."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        machine.attach(slots=self.random.choice(SLOTS))
        machine.keep_slots(percent=self.random.choice(RESERVES))
        if self.random.random() < 0.3:
            machine.configure(name="share", choice=1)

    def step(self) -> None:
        """Take one step; every fourth one reads the whole keyspace."""
        m, choose, seed = self.machine, self.random.choice, self.random.randrange(2**16)
        match self.random.choices(range(5), [8, 12, 8, 6, 3])[0]:
            case 0:
                m.enqueue(tenant=choose(NAMES), ids=self.some(5, TASKS), window=self.few_windows())
            case 1:
                m.claim(limit=max(1, min(6, m.attached - len(m.model.leases))), seed=seed)
            case 2:
                action = choose(["ack", "ack", "ack", "nack", "release", "extend"])
                settle = [(action, choose(m.running() or [0]), 0 if action == "nack" else None, "")]
                m.settle(chosen=settle * choose([1, 1, 2]), seed=seed)
            case 3:
                m.advance(ms=choose([1, 1, 50, 50, 400]))
                if choose([True, False, False]):
                    m.tick(ms=0, limit=100)
            case 4:
                self.operate(choose(NAMES))
        self.keep()
        if self.random.random() < 0.25:
            self.compare()

    def few_windows(self) -> dict[str, Any]:
        """Let a few tasks expire."""
        return {"expires_in": 50} if self.random.random() < 0.15 else {}

    def operate(self, tenant: str) -> None:
        """Change something."""
        m, choose = self.machine, self.random.choice
        match self.random.choices(range(7), [4, 3, 1, 2, 2, 2, 0.3])[0]:
            case 0:
                m.attach(slots=choose(SLOTS))
            case 1:
                m.keep_slots(percent=choose(RESERVES))
            case 2:
                m.set_limits(name=choose(["", tenant]), limit="max_running", choice=choose(range(6)))
            case 3:
                m.set_limits(name=tenant, limit=choose(["guaranteed", "max_running"]), choice=self.random.randrange(4))
            case 4:
                m.operate(
                    verb=choose(["set_weight", "pause", "resume"]), tenant=tenant, weight=choose([500, 1000, 9000])
                )
            case 5:
                m.cancel(ids=self.some(3, TASKS))
            case 6:
                m.configure(name="share", choice=choose([0, 1]))
