"""What a server process holds while many clients send it all that they may."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import fairq
from fairq.model.checks import MAX_PAYLOAD_BYTES
from fairq.model.tasks import MAX_LEASES
from tests.server.harness import OPERATOR, WORKER, raw, tenant
from tests.store.waiting import wait_until

from .harness import World

pytestmark = pytest.mark.deep("longest")

CLIENTS, COPIES, PROCESS_MIB = 5, 6, 100  # fairq/docs/limits.md says how many copies


def peak_mib(pid: int) -> int:
    """Read the most memory that a process has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) >> 10


async def test_memory_is_bounded_by_the_connections_that_send_the_longest_payloads(world: World) -> None:
    payload = "x" * (MAX_PAYLOAD_BYTES - 2)
    server = world.serve("--data-dir", world.directory / "data", "--max-payload-bytes", str(MAX_PAYLOAD_BYTES))
    with trio.fail_after(120):
        url = await server.wait_url()

        async def send() -> None:
            async with fairq.open_client(url, token=tenant("ada")) as client:
                await client.enqueue_many("emails", [payload] * 3, timeout=100)

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(send)
        async with fairq.open_client(url, token=tenant("ada")) as client:
            assert len((await client.peek("emails"))[0].payload) == len(payload)
        assert peak_mib(server.pid) < CLIENTS * COPIES * (MAX_PAYLOAD_BYTES >> 20) + PROCESS_MIB


async def test_a_worker_of_many_queues_that_reads_nothing_is_given_no_more_than_one_reply_holds(world: World) -> None:
    payload, queues = "x" * (MAX_PAYLOAD_BYTES - 2), [f"q{n}" for n in range(15)]
    server = world.serve("--data-dir", world.directory / "data", "--max-payload-bytes", str(MAX_PAYLOAD_BYTES))
    with trio.fail_after(120):
        url = await server.wait_url()
        async with fairq.open_client(url, token=tenant("ada")) as client:
            for queue in queues:
                await client.enqueue(queue, payload, id="a", timeout=100)
        async with raw(url, WORKER) as worker, fairq.open_operator(url, token=OPERATOR, timeout=100) as op:
            credit = 500  # several queues claim at once
            await worker.send("attach", ref=1, worker="w", queues=queues, credit=credit, leases=[])

            async def have_gone_back() -> bool:
                states = [(await op.tasks(queue, ["ada/a"]))[0] for queue in queues]
                came = [each.state for each in states if each.attempt]
                return came.count("leased") == 1 and came.count("ready") >= credit // MAX_LEASES - 1

            await wait_until(have_gone_back)
        assert peak_mib(server.pid) < COPIES * (MAX_PAYLOAD_BYTES >> 20) + PROCESS_MIB
