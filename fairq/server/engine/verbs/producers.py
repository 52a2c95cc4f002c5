"""Enqueueing by producers: tasks of many tenants in one request and one turn of the store, all or none of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import trio

from fairq.errors import FairqError, OutcomeUnknown, Retryable, TooMany
from fairq.io.taskless import acquire, in_task
from fairq.model.checks import owner_of
from fairq.model.outcomes import part_states
from fairq.model.tasks import NewTask
from fairq.server.engine.app import App
from fairq.server.engine.net.tenant_load import MAX_TENANT_REQUESTS_HERE, RETRY_MS
from fairq.server.engine.verbs.request_scope import Body
from fairq.store.covered import Covered
from fairq.wire.calls import REFUSED


def promise_claim(app: App, queue: str, tenant: str, tasks: Sequence[NewTask]) -> str | Covered:
    """Return which servers the store notifies of tasks; none if a claim is promised to those that are ready at once."""
    return app.queues.promise_claim(queue, tenant, sum([not (task.delay_ms or task.start_at_ms) for task in tasks]))


def tick_when_due(app: App, queue: str, tasks: Iterable[NewTask]) -> None:
    """Schedule ticks of the queue for when the stored tasks are due."""
    for task in tasks:
        if task.delay_ms or task.start_at_ms:
            app.ticker.tick_within(queue, task.delay_ms)


async def store_for_tenants(
    app: App,
    queue: str,
    tasks: Sequence[NewTask],
    is_busy: Callable[[str], bool] = lambda _: False,
    maker: str | None = None,
) -> tuple[list[str], dict[str, FairqError]]:
    """Store tasks of many tenants; returns the outcomes, and why some tenants' tasks are refused.

    `is_busy`: whether a tenant has too many requests under way. Raises: what may be sent again, for all of them, unless
    the queue has partitions: then some tenants' primary may be away, and the others' tasks are stored.
    """
    by_tenant: dict[str, list[int]] = defaultdict(list)
    for n, task in enumerate(tasks):
        by_tenant[owner_of(task.id)].append(n)
    outcomes, busy = [REFUSED] * len(tasks), [tenant for tenant in by_tenant if is_busy(tenant)]
    for tenant in busy:
        del by_tenant[tenant]
    refusals: dict[str, FairqError] = {}

    async def store(tenant: str, numbers: Sequence[int]) -> None:
        some, call = [tasks[n] for n in numbers], object()
        await acquire(app.producers_calls, call)  # else a few producers' requests fill everybody's line to the store
        try:
            # Of several tenants the calls are sent together: a claim might come before the last of them.
            notify = promise_claim(app, queue, tenant, some) if is_alone else "all"
            own = await app.store.enqueue(queue, tenant, some, notify=notify, maker=maker)
        except FairqError as error:
            refusals[tenant] = error
            return
        finally:
            app.producers_calls.release_on_behalf_of(call)
        for n, outcome in zip(numbers, own, strict=True):
            outcomes[n] = outcome

    if is_alone := len(by_tenant) == 1:
        await store(*next(iter(by_tenant.items())))
    else:
        await in_task()
        async with trio.open_nursery() as nursery:
            for tenant, numbers in by_tenant.items():
                nursery.start_soon(store, tenant, numbers)
    if len(app.store.registry.places_known(queue)) == 1:
        _check_decided(refusals, len(by_tenant))
    for tenant in busy:
        message = f"at most {MAX_TENANT_REQUESTS_HERE} requests of one tenant may be under way"
        refusals[tenant] = TooMany(message, retry_in_ms=RETRY_MS)
    return outcomes, refusals


def _check_decided(refusals: Mapping[str, FairqError], tenants: int) -> None:
    """Refuse the whole request if some of it is to be sent again. Raises: FairqError."""
    undecided = [error for error in refusals.values() if isinstance(error, Retryable)]
    if not undecided:
        return
    if len(undecided) == tenants and len({error.code for error in undecided}) == 1:
        raise undecided[0]
    raise OutcomeUnknown(f"some of the tasks may have been stored: {undecided[0].message}; send the same again")


def outcomes_part(outcomes: Sequence[str]) -> Body:
    """Return the part of a reply that says what became of tasks, and how those stand that some are duplicates of."""
    if outcomes.count("ok") == len(outcomes):
        return {"outcomes": outcomes}
    words, states = part_states(outcomes)
    return {"outcomes": words} | ({"duplicate_of_states": states} if states else {})


def refusals_part(refusals: Mapping[str, FairqError]) -> Body:
    """Return the part of a reply that says why tenants were refused, if any were."""
    rows = {}
    for tenant, error in refusals.items():
        row = {"code": error.code, "message": error.message, "field": error.field, "retry_in_ms": error.retry_in_ms}
        rows[tenant] = {name: value for name, value in row.items() if value is not None}
    return {"refusals": rows} if rows else {}
