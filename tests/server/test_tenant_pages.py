"""Lists of more tenants than a page has: over the wire, and by the SDK; a reply stays small however many there are."""

from __future__ import annotations

from typing import Any

import fairq
from fairq.model.checks import MAX_BATCH
from fairq.server.run import Served

from .harness import OPERATOR, raw, url_of

NAMES = [f"t{n:04}" for n in range(1_300)]
MARGIN = 600  # of a page: what the store looks at in one step, and some more


async def test_pages_make_up_the_whole_list(served: Served) -> None:
    async with fairq.open_client(url_of(served), token="dev-producer") as producer:
        await producer.enqueue_many("q", [1] * len(NAMES), tenant=NAMES)
    async with raw(served, OPERATOR) as operator:
        found, pages, place = list[str](), 0, dict[str, Any]()
        while pages == 0 or place["cursor"]:
            page = await operator.ask("tenants", queue="q", count=100, **place)
            names, pages = [row["tenant"] for row in page["tenants"]], pages + 1
            assert names == sorted(names)
            assert len(names) >= 100 or page["cursor"] is None
            assert len(names) < 100 + MARGIN
            found, place = found + names, {"cursor": page["cursor"]}
        assert pages > 1
        assert sorted(set(found)) == NAMES
        first = await operator.ask("tenants", queue="q")
        assert MAX_BATCH <= len(first["tenants"]) < MAX_BATCH + MARGIN
        assert first["cursor"]
        one = await operator.ask("tenants", queue="q", tenant="t0007", cursor="5", count=1)
        assert ([row["tenant"] for row in one["tenants"]], one["cursor"]) == (["t0007"], None)
    async with fairq.open_operator(url_of(served), token=OPERATOR) as client:
        assert [row.tenant for row in await client.tenants("q")] == NAMES
        assert [row.tenant for row in await client.tenants("q", tenant="t0007")] == ["t0007"]
