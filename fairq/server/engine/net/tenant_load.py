"""The load of each tenant on one producer's connection, so that none crowds out the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from attrs import define, field

from fairq.errors import TooMany
from fairq.model.checks import owner_of
from fairq.model.rates import Rates
from fairq.server.engine.net.admission import CHANGES_BURST, CHANGES_PER_S
from fairq.wire.messages import Enqueue
from fairq.wire.terms import MAX_TENANT_WAITING

MAX_TENANT_REQUESTS_HERE = 256  # under way at once, of one tenant: as many as on a connection of its own
RETRY_MS = 100  # after which a request over a limit may be tried again


def tenants_of(request: Any) -> frozenset[str]:
    """Return the tenants of a producer's request, as far as it names any."""
    if isinstance(request, Enqueue):
        return frozenset(owner_of(task.id) or request.tenant or "" for task in request.tasks)
    ids = getattr(request, "ids", None) or [getattr(request, "id", "")]
    return frozenset(map(owner_of, ids)) if ids != [""] else frozenset([getattr(request, "tenant", None) or ""])


@define(eq=False)
class TenantLoad:
    """Requests under way, and things that requests wait for, by tenant."""

    requests: Counter[str] = field(factory=Counter)
    waits: Counter[str] = field(factory=Counter)
    changes: Rates = field(factory=lambda: Rates(CHANGES_PER_S, CHANGES_BURST))  # that the audit notes

    def count(self, tenants: Iterable[str], more: int) -> None:
        """Add to the number of requests under way of each tenant."""
        for tenant in tenants:
            _add(self.requests, tenant, more)

    def count_waits(self, ids: Iterable[str], more: int) -> None:
        """Add to the number of things waited for, by their full ids."""
        for id in ids:
            _add(self.waits, owner_of(id), more)

    def is_busy(self, tenant: str) -> bool:
        """True if a tenant has more requests under way than it may."""
        return self.requests[tenant] > MAX_TENANT_REQUESTS_HERE

    def reached_limit(self, tenants: Iterable[str]) -> str:
        """Return which limit one more request would exceed; empty if none."""
        full = next((each for each in tenants if self.requests[each] >= MAX_TENANT_REQUESTS_HERE), None)
        return "" if full is None else f"at most {MAX_TENANT_REQUESTS_HERE} may be under way for tenant {full}"

    def check_waits(self, ids: Iterable[str]) -> None:
        """Check that a request may wait for these. Raises: TooMany."""
        for tenant, count in Counter(map(owner_of, ids)).items():
            if self.waits[tenant] + count > MAX_TENANT_WAITING:
                message = f"too many waits: at most {MAX_TENANT_WAITING} tasks and batches of tenant {tenant}"
                raise TooMany(message, retry_in_ms=RETRY_MS)


def _add(counts: Counter[str], tenant: str, more: int) -> None:
    counts[tenant] += more
    if not counts[tenant]:
        del counts[tenant]
