"""A walk of the state machine in which tasks that are done have others that follow them."""

from __future__ import annotations

import random
from typing import Any

from .machine import BATCHES, IDS, LEASE, MANY_IDS, QueueMachine, Walk


class LinkedWalk(Walk):
    """Steps of the usual walk, and every other time an acknowledgement with links before it."""

    def __init__(self, machine: QueueMachine, seed: int) -> None:
        super().__init__(machine, seed)
        self.linker = random.Random(seed)

    def step(self) -> None:
        """Acknowledge a lease with links, perhaps; then take a usual step."""
        if self.linker.random() < 0.5:
            self.link()
        super().step()

    def link(self) -> None:
        """Choose a lease, most often one that runs, and what follows it."""
        m, choose, windows = self.machine, self.linker.choice, [{}, self.window()]
        back = choose([0, 1, 2, *m.running()])
        id, _ = m.lease(back)
        if id in m.model.leases:
            task, tenant = m.model.records[id].options, m.model.records[id].tenant.name
            chain = {"dedupe_key": task.dedupe_key, "batch": task.batch, "dedupe_period": choose([0, LEASE])}
            windows += [chain | {"result_ttl": LEASE}, self.batch(tenant)]
            if choose(range(10)) == 0:
                m.set_limits(name=tenant, limit="stored_bytes", choice=choose(range(6)))
        ids = self.linker.choices([*IDS, *MANY_IDS, id, *self.derived(id)], k=choose([1, 2, 3]))
        m.settle_linked(back=back, ids=ids, window=choose(windows) | choose(windows))

    def derived(self, id: str) -> list[str]:
        """Return ids that are remembered for longer: of what a handler enqueues, and of a task's copies."""
        records = self.machine.model.records
        copied = self.linker.choice(sorted(records)) if records else id
        made_at = records[copied].created_at if records else 0
        return [*(f"ada/from-{n}" for n in range(8)), *(f"{copied}+{n}f-{made_at:.0f}" for n in range(8))]

    def batch(self, tenant: str) -> dict[str, Any]:
        """Choose a batch of a tenant, which is opened if there is none."""
        m, choose = self.machine, self.linker.choice
        if not any(b.tenant == tenant for b in m.model.batches.values()):
            m.open_batch(tenant=tenant, name=choose(BATCHES), max_running=choose([0, 1, 2]), called=choose(range(16)))
        names = [name for name, b in m.model.batches.items() if b.tenant == tenant]
        return {"batch": choose(names)} if names else {}
