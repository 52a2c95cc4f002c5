"""Changes that create a queue or a tenant: a typo does that too, so operators get a message."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from fairq.cli.options import Server, run_with
from fairq.client.requests import named
from fairq.model.suggestions import did_you_mean

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient

T = TypeVar("T")


def change(server: Server | None, queue: str, tenant: str | None, work: Callable[[OperatorClient], Awaitable[T]]) -> T:
    """Run `work(client)`, and say so if the queue, or the tenant in it, is new."""

    async def tell_and_work(client: OperatorClient) -> T:
        news = await _news_of(client, queue, tenant)
        done = await work(client)
        if news:
            print(f"fairq: {news}", file=sys.stderr)
        return done

    return run_with(server, tell_and_work)


async def _news_of(client: OperatorClient, queue: str, tenant: str | None) -> str:
    if not await client.queue_exists(queue):
        others = [row.queue for row in await client.queues() if row.queue != queue]  # workers may wait for it
        return f"queue {queue} is new{did_you_mean(queue, others)}"
    if tenant is None or await client.tenants(queue, tenant=tenant):
        return ""
    page = await client.request("tenants", named(queue))  # the first: a queue may have a million
    return f"tenant {tenant} of {queue} is new{did_you_mean(tenant, [row['tenant'] for row in page['tenants']])}"
