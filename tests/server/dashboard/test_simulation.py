"""The Simulate page: what it shows of a queue with a history, and what it lacks without."""

from __future__ import annotations

from urllib.parse import urlencode

import pytest
import trio

from tests.server.harness import WORKER, raw, tenant
from tests.store.waiting import wait_until

from .harness import Site, busy, text_of, visited


async def page(site: Site, status: int = 200, **query: str) -> str:
    """Read the page's text."""
    return text_of(await site.read(f"/simulate?{urlencode({'queue': 'q', **query})}", status))


async def test_a_proposal_is_shown_beside_today(server_store: str) -> None:
    with trio.fail_after(30):
        async with busy(server_store) as (site, _):
            assert "Nothing to simulate yet" in await page(site)
            await site.served.app.recorder.flush()
            told = await page(site)
            assert "Nothing is changed" in told
            assert "ada" in told
            assert "come back later" in told
            html = await site.read(f"/simulate?{urlencode({'queue': 'q', 'weight:ada': '4', 'slots': '7'})}")
            assert 'name="weight:ada" aria-label="Weight of ada" placeholder="1" value="4"' in html
            assert 'name="slots" min="1" max="10000" value="7"' in html
            assert [each.weight for each in await site.store.tenants("q", ["ada"])] == [1.0]


async def test_without_workers_it_asks_for_how_many_slots(server_store: str) -> None:
    with trio.fail_after(30):
        async with visited(server_store) as site, raw(site.served, tenant("ada")) as ada:
            await ada.enqueue("q", ["t"])
            async with raw(site.served, WORKER) as worker:
                await worker.attach("q")
                await worker.settle("q", "ack", *await worker.pushed())
                await site.served.app.recorder.flush()

            async def is_asked() -> bool:
                return "No worker is attached" in await page(site)

            await wait_until(is_asked)
            assert "Nothing is changed" in await page(site, slots="3")


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ({"weight:ada": "0"}, 400, "weight must not be 0"), ({"weight:ada": "x"}, 400, "weight must be a number"),
        ({"max_running:ada": "1.5"}, 400, "max_running must be a whole number"),
        ({"slots": "0"}, 400, "slots must be"), ({"slots": "1e99"}, 400, "slots must be"),
        ({"slots": "nan"}, 400, "slots must be"), ({"weight:ada": "nan"}, 400, "weight must be"),
        ({"period": "2h"}, 400, "period must be one of"), ({"dead:ada": "1"}, 400, "cannot be simulated here"),
        ({"weight:none": "2"}, 404, "has no tenant none"), ({"queue": "none"}, 404, "there is no queue"),
    ],
)  # fmt: skip
async def test_invalid_proposals_are_told_on_the_page(
    server_store: str, query: dict[str, str], status: int, said: str
) -> None:
    with trio.fail_after(30):
        async with busy(server_store) as (site, _):
            await site.served.app.recorder.flush()
            assert said in await page(site, status, **query)


async def test_a_queue_where_nothing_ran_says_so(server_store: str) -> None:
    with trio.fail_after(30):
        async with visited(server_store) as site, raw(site.served, tenant("ada")) as ada:
            await ada.enqueue("q", ["t"])
            await site.served.app.recorder.flush()
            assert "Nothing to simulate yet" in await page(site)
