"""What a server process holds while many clients send it all that they may."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

import fairq
from fairq.model.checks import MAX_PAYLOAD_BYTES
from tests.server.harness import tenant

from .harness import World

pytestmark = pytest.mark.deep

CLIENTS, COPIES, PROCESS_MIB = 10, 6, 100  # RUNBOOK.md says how many copies


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
