"""A batch with four tasks running at once, its progress, and a task that follows when all are done."""

import asyncio

import fairq


async def main() -> None:
    async with fairq.open_client(token="dev-tenant:acme") as client:
        batch = await client.open_batch("thumbnails", max_running=4, on_success="the album")
        await batch.add_many([f"{n}.jpg" for n in range(100)])
        await batch.close()
        async for state in batch.watch(every=0.2):
            print(f"{state.done} of {state.total}")


asyncio.run(main())
