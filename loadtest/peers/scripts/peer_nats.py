"""NATS JetStream: a work queue stream in files, one durable pull consumer."""

from __future__ import annotations

import asyncio
import sys

import nats
import peerlib
from nats.aio.client import Client as Connection
from nats.errors import TimeoutError as NothingThere
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType

SLOTS = peerlib.SETTINGS["slots"]
IS_BATCHED = not peerlib.SETTINGS.get("is_quiet")


class Client:
    """Publishes messages and waits for the server to confirm each; in bulk a chunk is under way at once."""

    def __init__(self, connection: Connection) -> None:
        self.stream = connection.jetstream()

    async def one(self, payload: str) -> None:
        """Publish a message."""
        await self.stream.publish("work", payload.encode())

    async def many(self, payloads: list[str]) -> None:
        """Publish messages by concurrent callers."""
        await peerlib.concurrently(self.one, payloads, 250)

    async def left(self) -> int:
        """Count what the stream has: a message is deleted when it is acknowledged."""
        return (await self.stream.stream_info("WORK")).state.messages


async def connect() -> Connection:
    """Connect to the server."""
    return await nats.connect(f"nats://127.0.0.1:{peerlib.SETTINGS['port']}")


async def produce() -> None:
    """Make the stream and take orders."""
    client = Client(await connect())
    await client.stream.add_stream(
        name="WORK", subjects=["work"], storage=StorageType.FILE, retention=RetentionPolicy.WORK_QUEUE
    )
    await peerlib.serve(client)


async def pull(connection: Connection, batch: int) -> None:
    """Fetch, do and acknowledge messages, `batch` at a time."""
    config = ConsumerConfig(max_ack_pending=10_000)
    consumer = await connection.jetstream().pull_subscribe("work", durable="workers", config=config)
    while True:
        try:
            messages = await consumer.fetch(batch, timeout=5)
        except NothingThere:
            continue
        for message in messages:
            await peerlib.handle_async(message.data.decode())
            await message.ack()


async def work() -> None:
    """Fetch in batches; to be busy in several slots, fetch one message in each."""
    connection = await connect()
    if IS_BATCHED:
        await pull(connection, SLOTS)
    else:
        await asyncio.gather(*(pull(connection, 1) for _ in range(SLOTS)))


if __name__ == "__main__":
    asyncio.run(produce() if sys.argv[1] == "produce" else work())
