"""Tokens with labels, expiry and last use: who is refused, when open connections end, and what is written how often."""

from __future__ import annotations

import time

import httpx
import pytest
import redis

from fairq.client.operator import open_operator
from fairq.errors import FairqError, TokenExpired, Unauthorized
from fairq.server.engine.net import revocations, token_uses
from fairq.server.run import Served
from fairq.store import keys
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import CLOSE_REVOKED, Role
from tests.server.harness import OPERATOR, Raw, raw, running, url_of

HOUR_MS = 3_600_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How far the servers' wall clock is ahead of its beginning, in seconds: it stands until the test moves it."""
    ahead, began = [0.0], time.time()
    monkeypatch.setattr("time.time", lambda: began + ahead[0])
    return ahead


@pytest.mark.parametrize("role", Role)
async def test_an_expired_token_is_refused_and_its_connections_end(
    served: Served, operator: Raw, clock: list[float], monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    monkeypatch.setattr(revocations, "POLL_S", 0.01)
    id, text = await operator.create_token(role, expires_in_ms=HOUR_MS)
    async with raw(served, text) as client:
        clock[0] = 3_599
        async with raw(served, text):
            pass
        clock[0] = 3_601
        assert await client.closed() == (CLOSE_REVOKED, "the token has expired")
    with pytest.raises(TokenExpired, match=f"the token {id} expired at 20"):
        await served.app.auth.identify(text)
    with pytest.raises(Unauthorized, match="expired at"):
        async with open_operator(url_of(served), token=text) as late:
            await late.queues()


async def test_an_expired_token_is_refused_over_http_with_its_own_code(server_store: str, clock: list[float]) -> None:
    async with running(server_store, http_port=0, admin_port=0) as served, raw(served, OPERATOR) as operator:
        assert served.http is not None
        assert served.admin is not None
        _, ada = await operator.create_token(Role.TENANT, expires_in_ms=HOUR_MS)
        _, ann = await operator.create_token(Role.OPERATOR, expires_in_ms=HOUR_MS)
        clock[0] = 3_601
        for place, token, path in ((served.http, ada, "/v1/queues/q/limits"), (served.admin, ann, "/api/queues")):
            async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, verify=False) as client:
                answer = await client.get(f"http://{place.host}:{place.port}{path}")
                assert (answer.status_code, answer.json()["code"]) == (401, "token_expired")


async def test_labels_expiry_and_last_use_are_listed(served: Served, operator: Raw, redis_store: redis.Redis) -> None:
    id, text = await operator.create_token(Role.TENANT, label="Ann's laptop", expires_in_ms=HOUR_MS)
    (row,) = (await operator.ask("list_tokens"))["tokens"]
    assert (row["label"], row["used_at_ms"]) == ("Ann's laptop", 0)
    assert row["expires_at_ms"] == row["created_at_ms"] + HOUR_MS
    async with raw(served, text):
        pass
    assert not redis_store.exists(keys.TOKEN_USES), "nothing is written with a request"
    await served.app.token_uses.write()
    (row,) = (await operator.ask("list_tokens"))["tokens"]
    assert abs(row["used_at_ms"] - time.time() * 1000) < 60_000
    await operator.ask("revoke_token", id=id)
    assert not redis_store.exists(keys.TOKEN_USES)
    served.app.token_uses.note(id)
    await served.app.token_uses.write()
    assert not redis_store.exists(keys.TOKEN_USES), "a revoked token leaves nothing"


async def test_a_connection_that_stays_open_is_a_use(
    served: Served, operator: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, text = await operator.create_token(Role.WORKER)
    async with raw(served, text) as worker:
        await served.app.token_uses.write()
        served.app.token_uses._used.clear()
        await worker.attach("q")
        await served.app.token_uses.write()
        first = (await served.app.store.tokens.read_uses())[id]
        monkeypatch.setattr(token_uses, "WRITE_S", -1.0)  # nothing was heard of it since
        await served.app.token_uses.write()
        assert (await served.app.store.tokens.read_uses())[id] == first


async def test_uses_that_cannot_be_written_are_written_later(
    served: Served, operator: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise FairqError("the store is away")

    id, text = await operator.create_token(Role.TENANT)
    async with raw(served, text):
        pass
    with monkeypatch.context() as patch:
        patch.setattr("fairq.store.token_records.Tokens.write_uses", away)
        await served.app.token_uses.write()
    await served.app.token_uses.write()
    assert id in await served.app.store.tokens.read_uses()


async def test_a_token_made_again_keeps_its_first_expiry(served: Served, clock: list[float]) -> None:
    id, text = make_token(Role.WORKER)
    record = TokenRecord(id, "worker", hash_token(text))
    await served.app.auth.create(record, HOUR_MS)
    (first,) = await served.app.auth.tokens()
    clock[0] = 60
    await served.app.auth.create(record, HOUR_MS)
    assert await served.app.auth.tokens() == [first]
