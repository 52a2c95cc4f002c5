"""Acknowledges a task together with its follow-up tasks."""

from __future__ import annotations

from collections.abc import Sequence

from fairq.model.queue.enqueue import Enqueueing
from fairq.model.queue.settle import Settling
from fairq.model.tasks import NewTask


class Linking(Settling, Enqueueing):
    """The verb that acknowledges a task and stores its links."""

    def settle_linked(self, now: float, id: str, lease: int, said: str, links: Sequence[NewTask]) -> str:
        """Acknowledge a task, and store tasks of its tenant that follow it: all of it or nothing."""
        now = self.open(now)
        if id not in self.leases or self.runs[id].lease != lease:
            return self.refusal(id, lease, now)
        outcomes, new, replaced = self.decide(now, self.records[id].tenant.name, links, [id])
        if outcomes[0].startswith("FAIRQ"):
            return outcomes[0]
        if "expired" in outcomes:
            return "FAIRQ bad_request expires_at"
        self.settle_one("ack", id, lease, None, said, "", now, iter(()))
        for b in self.batches.values():
            self.refill(b)
        self.store_decided(now, new, replaced)
        self.finish_batches(now)
        self.close(now)
        return "ok"
