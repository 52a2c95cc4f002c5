"""Celery, through Redis or fairq: one worker, prefork or threads, that acknowledges when a task is done."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import peerlib
from celery import Celery

app = Celery("peer_celery")
if url := peerlib.SETTINGS.get("url"):
    import fairq.celery
    import fairq.sync

    app.conf.broker_url = f"fairq://:dev-worker,dev-producer@{url.removeprefix('ws://')}"
else:
    app.conf.broker_url = f"redis://127.0.0.1:{peerlib.SETTINGS['port']}/0"
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=1 if url and peerlib.SETTINGS.get("is_quiet") else 4,
    worker_disable_rate_limits=True,
    broker_connection_retry_on_startup=True,
    worker_send_task_events=False,
)


@app.task(name="handle")
def handle(payload: str) -> None:
    """Do a task."""
    peerlib.handle(payload)


class Client:
    """Enqueues tasks; there is no bulk call, so 8 threads share a chunk."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(8)
        with app.connection_for_read() as connection:
            connection.ensure_connection()

    has_tenants = True

    def one(self, payload: str, tenant: str) -> None:
        """Enqueue a task."""
        handle.apply_async((payload,), headers={"tenant": tenant})

    def many(self, payloads: list[str], tenant: str) -> None:
        """Enqueue tasks by threads."""
        for _ in self.threads.map(lambda payload: self.one(payload, tenant), payloads):
            pass

    def left(self) -> int:
        """Count what is queued and what is not acknowledged."""
        if url:
            return self.threads.submit(self._left_in_fairq).result()
        with app.connection_for_read() as connection:
            client = connection.default_channel.client
            return int(client.llen("celery")) + int(client.hlen("unacked"))

    def _left_in_fairq(self) -> int:
        with fairq.sync.open_operator(url, token="dev-operator") as operator:
            rows = operator.request("queues")["queues"]
        return sum(row["ready"] + row["delayed"] + row["leased"] for row in rows)


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.run(peerlib.serve(Client()))
    else:
        pool = "threads" if peerlib.SETTINGS.get("is_quiet") else peerlib.SETTINGS["pool"]
        options = ["-P", pool, "-c", str(peerlib.SETTINGS["slots"]), "-l", "WARNING"]
        app.worker_main(["worker", *options, "--without-gossip", "--without-mingle", "--without-heartbeat"])
