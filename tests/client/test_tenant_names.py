"""Tenants are named as products name their customers: by e-mail addresses, random ids, names with capitals."""

from __future__ import annotations

import re

import pytest

import fairq
from fairq.client.operator import open_operator
from fairq.errors import Unauthorized
from fairq.model.tasks import Settlement
from fairq.server.run import Served
from tests.server.harness import OPERATOR, tenant, url_of
from tests.store.cases import case

NAMES = ["org_2AbC", "Ada.Lovelace+1@acme.example", "..", "-", "+0123abcd", "ORG_2ABC", "Z" * 128]
LONGEST = "i" * 64
RULE = re.escape("1 to 128 of A-Z, a-z, 0-9, '.', '_', '-', '@', '+'")


async def test_every_name_has_tasks_batches_schedules_and_dead_letters(served: Served) -> None:
    store = served.app.store
    async with open_operator(url_of(served), token=OPERATOR) as operator:
        for name in NAMES:
            async with fairq.open_client(url_of(served), token=tenant(name)) as client:
                batch = await client.open_batch("emails", id="b" * 40, on_complete="after", events=True)
                task = await batch.add(1, id=LONGEST, group="g", dedupe_key="k", result_ttl=60)
                await batch.close()
                await client.schedule("emails", "s" * 40, 1, every=60)
                (lease,) = (await store.claim("emails", "w", 1)).leases
                assert (lease.tenant, lease.id) == (name, f"{name}/{LONGEST}")
                settled = await store.settle("emails", [Settlement("reject", lease.id, lease.lease, None, "no")])
                assert settled == ["ok"]
                (after,) = (await store.claim("emails", "w", 1)).leases
                assert after.id.startswith(f"{name}/{'b' * 40}-complete-")
                assert (await task.state()).state == "dead"
                assert (await client.events("emails").__anext__()).batch == batch.id
                letters = operator.dead_letters("emails")
                assert [letter.id async for letter in letters.walk(tenant=name)] == [lease.id]
                assert await client.dead_letters("emails").replay([task.id]) == ["ok"]
                assert await client.cancel_all("emails") == 1
            await operator.set_weight("emails", name, 2)
            await operator.set_limits("emails", name, queued=5)
            await operator.pause("emails", name)
        assert {state.tenant for state in await operator.tenants("emails")} == set(NAMES)
        assert {row.tenant for row in await operator.schedules("emails")} == set(NAMES)


async def test_another_name_is_refused_with_the_rule(served: Served) -> None:
    for name in ["", "a/b", "Z" * 129, "a:b"]:
        with case(name), pytest.raises(Unauthorized, match=RULE):
            async with fairq.open_client(url_of(served), token=tenant(name)) as client:
                await client.enqueue("emails", 1)
