"""A client that knows fairq from PROTOCOL.md alone: a raw websocket, dicts, and nothing of fairq's wire or SDK.

Also the worker that stands on the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import websockets.exceptions
from trio_websocket import WebSocketConnection, open_websocket_url

from fairq.server.run import running_server
from fairq.server.settings import Settings
from tests.frames import write_frame
from tests.test_documents import PROTOCOL


class Stranger:
    """One connection: numbers its requests, keeps what is pushed meanwhile."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.ref = 0
        self.pushed: list[dict[str, Any]] = []

    async def hear(self) -> dict[str, Any]:
        """Wait for the next frame that is not a ping."""
        while True:
            frame: dict[str, Any] = json.loads(await self.socket.get_message())
            if frame["type"] != "ping":
                return frame

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Send a request, and return its reply or error."""
        self.ref += 1
        await self.socket.send_message(write_frame({"type": verb, "ref": self.ref, **fields}))
        while (frame := await self.hear()).get("ref") != self.ref:
            assert frame["type"] == "push"
            self.pushed.append(frame)
        return frame

    async def next_task(self) -> dict[str, Any]:
        push = self.pushed.pop(0) if self.pushed else await self.hear()
        assert push["type"] == "push"
        [task] = push["tasks"]
        return {"queue": push["queue"], **task}


@asynccontextmanager
async def stranger(port: int, token: str) -> AsyncIterator[Stranger]:
    """Connect as section 1 says."""
    url, headers = f"ws://127.0.0.1:{port}", [(b"Authorization", f"Bearer {token}".encode())]
    async with open_websocket_url(url, subprotocols=["fairq.v1"], extra_headers=headers) as socket:
        yield Stranger(socket)


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[int]:
    async with running_server(Settings(port=0, data_dir=tmp_path, dev=True)) as served:
        yield served.port


async def test_a_stranger_enqueues_works_and_settles_by_the_book(port: int) -> None:
    with trio.fail_after(30):
        async with stranger(port, "dev-tenant:acme") as tenant, stranger(port, "dev-worker") as worker:
            assert (await tenant.hear())["tenant"] == "acme"
            assert (await worker.hear())["role"] == "worker"
            attached = await worker.ask("attach", worker="me", queues=["emails"], credit=1)
            assert attached["body"] == {"leases": []}

            tasks = [{"id": f"mail-{n}", "payload": {"to": "ada", "n": [n, 0.5, None]}} for n in range(2)]
            for outcome in ("ok", "duplicate"):  # sent again, as after a lost answer
                stored = await tenant.ask("enqueue", queue="emails", tasks=tasks)
                assert stored["body"]["outcomes"] == [outcome] * 2
            for n in range(2):
                task = await worker.next_task()
                assert (task["id"], task["attempt"], task["tenant"]) == (f"acme/mail-{n}", 1, "acme")
                assert task["payload"] == tasks[n]["payload"]
                lease = {"id": task["id"], "lease": task["lease"]}
                renewed = await worker.ask("settle", queue="emails", settlements=[{"action": "extend", **lease}])
                assert renewed["body"]["outcomes"] == ["ok"]
                for outcome in ("ok", "gone"):
                    settled = await worker.ask("settle", queue="emails", settlements=[{"action": "ack", **lease}])
                    assert settled["body"]["outcomes"] == [outcome]
            known = await tenant.ask("tasks", queue="emails", ids=["mail-0", "other"])
            assert [state["state"] for state in known["body"]["tasks"]] == ["done", "unknown"]


async def test_the_worker_of_the_page_works_until_a_later_one_takes_its_name(port: int) -> None:
    space: dict[str, Any] = {}
    exec(re.findall(r"^```python\n(.*?)^```$", PROTOCOL, re.MULTILINE | re.DOTALL)[0], space)
    tried: list[str] = []

    def handle(payload: str) -> object:
        tried.append(payload[:9])
        if payload == "fails once" and tried.count("fails onc") == 1:
            raise ValueError(payload)
        return "x" * 300_000 if payload == "says much" else len(payload)

    async def work() -> None:
        with pytest.raises(websockets.exceptions.ConnectionClosed):
            await trio.to_thread.run_sync(space["work"], f"ws://127.0.0.1:{port}", "dev-worker", "emails", handle)

    with trio.fail_after(60):
        async with (
            stranger(port, "dev-tenant:acme") as tenant,
            stranger(port, "dev-worker") as heir,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(work)
            await tenant.hear()
            payloads = ["short", "x" * 100_000, "fails once", "says much"]
            tasks = [{"id": f"t{n}", "payload": each, "result_ttl_ms": 60_000} for n, each in enumerate(payloads)]
            await tenant.ask("enqueue", queue="emails", tasks=tasks)
            ends = dict[str, Any]()
            while len(ends) < len(tasks):
                rest = [task["id"] for task in tasks if task["id"] not in ends]
                body = (await tenant.ask("wait_tasks", queue="emails", ids=rest))["body"]
                ends |= {end["id"]: end.get("result", end.get("reason")) for end in body["tasks"]}
            assert ends == {"t0": 5, "t1": 100_000, "t2": 10, "t3": "rejected"}
            await heir.hear()
            later = 1 << 50
            await heir.ask("attach", worker="worker-1", queues=["emails"], credit=0, started_at_ms=later)
