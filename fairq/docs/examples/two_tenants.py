"""One tenant floods a queue; another comes later, and does not wait for the flood."""

import asyncio

import fairq


async def main() -> None:
    async with fairq.open_client(token="dev-producer") as client:
        flood = await client.enqueue_many("thumbnails", [f"{n}.jpg" for n in range(400)], tenant="acme")
        quiet = await client.enqueue("thumbnails", "cat.png", tenant="globex", result_ttl=60)
        print(await quiet.result(timeout=30))
        states = await client.tasks("thumbnails", [task.id for task in flood])
        print("tasks of acme that were done by then:", sum(state.state == "done" for state in states), "of", len(flood))


asyncio.run(main())
