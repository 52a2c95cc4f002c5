"""/metrics for tokens of some queues: they read what is theirs, and nothing of other queues' tenants."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fairq.server.settings import Settings
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests.server.harness import raw, tenant

from .test_health import TOKEN
from .test_metrics import scraped


async def test_a_token_of_some_queues_is_told_of_these_alone(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "is_metrics_loopback", property(lambda self: False))
    async with scraped(server_store, plaintext=True) as (served, client):
        async with raw(served, tenant("ada")) as ada, raw(served, tenant("bob")) as bob:
            await ada.enqueue("mine", ["a"])
            await bob.enqueue("theirs", ["b"])
        id, token = make_token(Role.VIEWER)
        await served.app.auth.create(TokenRecord(id, "viewer", hash_token(token), queues=["mine", "none"]))

        async def told(headers: dict[str, str]) -> tuple[set[str], set[str], float]:
            text = (await client.get("/metrics", headers=headers)).text
            samples = [sample for each in text_string_to_metric_families(text) for sample in each.samples]
            queues, tenants = ({s.labels[name] for s in samples if name in s.labels} for name in ("queue", "tenant"))
            return queues, tenants - {"(other)"}, next(s.value for s in samples if s.name == "fairq_queues")

        whole = {"mine", "theirs"}, {"ada", "bob"}, 2
        assert await told(TOKEN) == whole
        assert await told({"Authorization": f"Bearer {token}"}) == ({"mine"}, {"ada"}, 1)
        assert await told(TOKEN) == whole
