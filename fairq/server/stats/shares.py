"""Samples of the shares that tenants were given and entitled to, to report the shares of the last minutes."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import structlog
import trio
from attrs import define, field

from fairq.errors import FairqError
from fairq.server.stats.wait_times import PERIOD_MS, WaitTimes
from fairq.store.store import Store

log = structlog.get_logger("fairq.server")

SAMPLE_S = 10.0


class Account(NamedTuple):
    """What a tenant was given and entitled to in total, at a time of this server's clock."""

    at: float
    delivered: float
    entitled: float


class HasWaitTimes(Protocol):
    """A dispatcher, which records how long tasks waited."""

    wait_times: WaitTimes


@define(eq=False)
class Shares:
    """Samples of the tenants whose tasks this server hands out, taken while there is work."""

    store: Store
    dispatchers: Mapping[str, HasWaitTimes]
    _samples: defaultdict[str, deque[dict[str, Account]]] = field(
        factory=lambda: defaultdict(lambda: deque(maxlen=round(PERIOD_MS / 1000 / SAMPLE_S))), init=False
    )
    _claims: dict[str, int] = field(factory=dict, init=False)  # when the last sample was taken

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            await trio.sleep(SAMPLE_S)
            for queue in list(self.dispatchers):
                try:
                    await self.sample(queue)
                except FairqError as error:
                    log.debug("cannot read shares", queue=queue, error=error.message)

    async def sample(self, queue: str) -> None:
        """Take a sample of a queue, if any task was handed out since the last one."""
        dispatcher = self.dispatchers.get(queue)
        if dispatcher is None or dispatcher.wait_times.starts == self._claims.get(queue, 0):
            return
        wait_times = dispatcher.wait_times
        self._claims[queue] = wait_times.starts
        rows = await self.store.tenants(queue, wait_times.tenants)
        if dispatcher.wait_times is not wait_times or queue not in self.dispatchers:
            return  # the queue was deleted meanwhile
        at = trio.current_time()
        self._samples[queue].append({row.tenant: Account(at, row.delivered, row.entitled) for row in rows})

    def forget(self, queue: str) -> None:
        """Drop the samples of a queue that was deleted."""
        self._samples.pop(queue, None)
        self._claims.pop(queue, None)

    def previous(self, queue: str, tenant: str) -> Account | None:
        """Return the oldest sample of a tenant within the last PERIOD_MS."""
        oldest = trio.current_time() - PERIOD_MS / 1000
        samples = (sample.get(tenant) for sample in self._samples.get(queue, ()))
        return next((account for account in samples if account and account.at >= oldest), None)
