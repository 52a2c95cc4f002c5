"""The tour in eight steps, under asyncio or trio: `python async_tour.py asyncio`."""

from __future__ import annotations

import asyncio
import sys
import time

import trio

import fairq


async def tour() -> None:
    """Show what a tenant, and a product with many, can do."""
    async with fairq.open_client() as client:
        task = await client.enqueue("tour", {"add": [1, 2]}, id="first")
        again = await client.enqueue("tour", {"add": [1, 2]}, id="first")
        print("enqueue:", task.id, again.is_duplicate)

        async with fairq.open_client(token="dev-producer") as producer:
            tasks = await producer.enqueue_many("tour", [1, 2, 3], ids=["a", "b", "c"], tenant=["x", "y", "x"])
            print("many tenants:", *(each.id for each in tasks))

        began = time.time()
        task = await client.enqueue("tour", {"ask": "time"}, delay=0.5, result_ttl=60)
        print("delay:", await task.result(timeout=30) - began >= 0.5)

        task = await client.enqueue("tour", {"add": [20, 22]}, result_ttl=60)
        print("result:", await task.result(timeout=30))

        batch = await client.open_batch("tour", id="report", max_running=2)
        await batch.add_many([1, 2, 3])
        await batch.close()
        print("batch:", (await batch.wait(timeout=30)).done)

        fires = await client.schedule("tour", "nightly", {"add": []}, cron="0 3 * * *", zone="Europe/Copenhagen")
        print("schedule:", len(fires), await client.unschedule("tour", "nightly"))

        task = await client.enqueue("tour", {"refuse": "once"}, id="odd", result_ttl=60)
        try:
            await task.result(timeout=30)
        except fairq.TaskFailed:
            letters = client.dead_letters("tour")
            print("dead letter:", [(letter.id, letter.reason, letter.error) async for letter in letters.walk()])
            print("replay:", *await letters.replay(["odd"]), await task.result(timeout=30))


if sys.argv[1] == "trio":
    trio.run(tour)
else:
    asyncio.run(tour())
