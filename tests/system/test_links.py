"""Chains of tasks over queues while servers are killed: no link is lost, and none is doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import trio

import fairq
from tests import stores
from tests.server.harness import tenant
from tests.store.waiting import wait_until

from .harness import World

CHAINS = 150


@pytest.mark.deep("kills")
async def test_chains_run_to_their_end_while_servers_are_killed(
    world: World, durable_store: Callable[[], stores.LocalServer]
) -> None:
    store = durable_store()
    with trio.fail_after(120):
        servers = [world.serve("--store", store.url) for _ in range(2)]
        urls = [await server.wait_url() for server in servers]
        ports = [url.rpartition(":")[2] for url in urls]
        world.work(*urls, name="worker", concurrency=8)
        async with fairq.open_client(urls, token=tenant("ada")) as ada:

            async def produce() -> None:
                for number in range(CHAINS):
                    await ada.enqueue("chain-1", number, id=f"c-{number}", timeout=60)

            def ends() -> int:
                return sum(row.event.startswith("chain-3:") for row in world.journal())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(produce)
                for kill in range(4):
                    await wait_until(lambda kill=kill: ends() > 30 * kill, 60)  # type: ignore[misc]
                    servers[kill % 2].kill()
                    servers[kill % 2] = world.serve("--store", store.url, "--port", ports[kill % 2])
            await wait_until(lambda: ends() >= CHAINS, 60)
            client = stores.connect(store.url)
            made = Counter(int(float(_state(client, f"chain-{n}")["enqueued"])) for n in (1, 2, 3))
            client.close()
    assert made == {CHAINS: 3}, "each queue was given each task once, however often attempts were repeated"
    numbers = {row.event.partition(":")[2] for row in world.journal() if row.event.startswith("chain-3:")}
    assert numbers == {str(number) for number in range(CHAINS)}


def _state(client: object, queue: str) -> dict[str, str]:
    from fairq.store import library

    name = library.function_name("queue_state")
    reply = client.fcall_ro(name, 1, f"fq:{{{queue}/0}}", "", "")  # type: ignore[attr-defined]
    words = [word.decode() for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
