"""Idle clients in a process of their own: `python -m loadtest.idle URL tenants|workers COUNT HOLDERS`.

They would otherwise share an event loop with the traffic whose latency is measured. One line is printed when GROUP more
are connected (workers: attached). The first HOLDERS workers serve a queue of their own, and hold each task of it. Then
the lines of the standard input are orders; when it ends, so do the clients.

    break    workers break their connections, all at once, and connect again: prints the seconds until all are attached
    finish   held tasks are done now
    tell     prints, as JSON, the ids of the tasks that are `done`, and how many `starts` they had
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import suppress

import structlog
import trio
from attrs import define, field

import fairq
from fairq.client.transport import ClientTransport

GROUP = 50  # that connect at once; more would wait for each other in this one process
QUEUE, HELD_QUEUE = "idle", "held"


@define(eq=False)
class IdleWorker(fairq.Worker):
    """A worker that tells when it is attached, and whose connection can be broken."""

    attached: trio.Event = field(factory=trio.Event, init=False)
    _broken: ClientTransport | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.on_startup(self._watch)

    async def _watch(self) -> None:
        driver = self._run.driver
        changed = driver.on_change

        def on_change() -> None:
            changed()
            if driver.session.is_attached and driver._transport is not self._broken:
                self.attached.set()

        driver.on_change = on_change

    def break_connection(self) -> None:
        """Break the connection as a proxy does that is restarted: both sides read its end, and no good-bye."""
        self.attached, self._broken = trio.Event(), self._run.driver._transport
        if self._broken is not None:
            with suppress(OSError):  # the server was first
                self._broken.socket.shutdown(socket.SHUT_RDWR)


@define(eq=False)
class Clients:
    """The idle clients of this process."""

    url: str
    kind: str
    holders: int
    workers: list[IdleWorker] = field(factory=list, init=False)
    starts: int = field(default=0, init=False)
    done: list[str] = field(factory=list, init=False)
    may_finish: trio.Event = field(factory=trio.Event, init=False)

    async def connect(self, nursery: trio.Nursery, count: int) -> None:
        """Connect them, group by group; they stay as long as the nursery."""
        connect_one = {"tenants": self._tenant, "workers": self._worker}[self.kind]
        for first in range(0, count, GROUP):
            numbers = range(first, min(first + GROUP, count))
            async with trio.open_nursery() as group:
                for n in numbers:
                    group.start_soon(nursery.start, connect_one, n)
            print(numbers.stop, flush=True)

    async def _tenant(self, n: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with fairq.open_client(self.url, token=f"dev-tenant:idle-{n}") as client:
            await client.tasks(QUEUE, ["none"])  # answered, so it is connected
            task_status.started()
            await trio.sleep_forever()

    async def _worker(self, n: int, *, task_status: trio.TaskStatus[None]) -> None:
        worker = IdleWorker(self.url, token="dev-worker", name=f"idle-{n}", concurrency=1)
        if n < self.holders:
            worker.task(HELD_QUEUE)(self._hold)
        else:
            worker.task(QUEUE)(_never)
        self.workers.append(worker)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await worker.attached.wait()
            task_status.started()

    async def _hold(self, task: fairq.Task) -> None:
        """Hold a task until all may finish. Cancelled: its lease was lost, and it starts again elsewhere."""
        self.starts += 1
        await self.may_finish.wait()
        self.done.append(task.id)

    async def obey(self) -> None:
        """Carry out orders until they end."""
        async with trio.lowlevel.FdStream(os.dup(sys.stdin.fileno())) as orders:
            line = b""
            async for data in orders:
                *lines, line = (line + data).split(b"\n")
                for order in lines:
                    await self._handle(order.decode())

    async def _handle(self, order: str) -> None:
        if order == "break":
            print(await self._break_all(), flush=True)
        elif order == "finish":
            self.may_finish.set()
        elif order == "tell":
            print(json.dumps({"done": self.done, "starts": self.starts}), flush=True)

    async def _break_all(self) -> float:
        began = trio.current_time()
        for worker in self.workers:
            worker.break_connection()
        for worker in self.workers:
            await worker.attached.wait()
        return trio.current_time() - began


async def _never(task: fairq.Task) -> None:
    raise AssertionError("an idle worker got a task")


async def main(url: str, kind: str, count: int, holders: int) -> None:
    """Connect, and stay until the orders end."""
    clients = Clients(url, kind, holders)
    async with trio.open_nursery() as nursery:
        await clients.connect(nursery, count)
        await clients.obey()
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
