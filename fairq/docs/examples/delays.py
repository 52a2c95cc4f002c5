"""Tasks that start later, that are moved, and that expire."""

import asyncio

import fairq


async def main() -> None:
    async with fairq.open_client(token="dev-tenant:acme") as client:
        later = await client.enqueue("reports", {"of": "May"}, delay=3600, result_ttl=60)
        print("before:", (await later.state()).state)
        print("started now:", await later.reschedule())
        print(await later.result(timeout=30))

        late = await client.enqueue("nobody-works-for-this", {"of": "June"}, expires_in=0.2, result_ttl=60)
        try:
            await late.result(timeout=30)
        except fairq.TaskFailed as error:
            print("failed:", error.message.rpartition("; ")[2])


asyncio.run(main())
