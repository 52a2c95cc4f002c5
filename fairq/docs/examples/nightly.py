"""A schedule for every night at three, and one for every second; the program waits for one fire of it."""

import asyncio
from zoneinfo import ZoneInfo

import fairq

HOME = "Europe/Copenhagen"


async def main() -> None:
    async with fairq.open_client(token="dev-tenant:acme") as client:
        fires = await client.schedule("reports", "nightly", {"of": "sales"}, cron="0 3 * * *", zone=HOME)
        print("nightly, next at", fires[0].astimezone(ZoneInfo(HOME)).strftime("%H:%M"))
        await client.schedule("reports", "pulse", {"of": "now"}, every=1, events=True, dedupe_key="pulse")
        async for event in client.events("reports"):
            print(event.event, "after attempt", event.attempt)
            break
        for name in ("nightly", "pulse"):
            print(name, "removed:", await client.unschedule("reports", name))


asyncio.run(main())
