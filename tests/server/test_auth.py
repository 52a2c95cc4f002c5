"""Who is let in, as what, and how they are put out again."""

from __future__ import annotations

import hmac
from typing import Any

import pytest
import redis

from fairq.errors import Unauthorized, Unavailable
from fairq.model.tasks import Lease
from fairq.server.engine.app import App
from fairq.server.engine.dispatch.capacity import free_of
from fairq.server.engine.net.connection import Connection
from fairq.server.run import Served
from fairq.store import keys
from fairq.tokens import hash_token, make_token
from fairq.wire.terms import Role
from tests.store.proxy import Proxy

from .harness import OPERATOR, PRODUCER, WORKER, Raw, raw, running, tenant

ROLES: list[tuple[str, str, str | None]] = [
    (tenant("ada"), "tenant", "ada"),
    (WORKER, "worker", None),
    (OPERATOR, "operator", None),
    (PRODUCER, "producer", None),
]


async def test_development_tokens_have_their_roles(served: Served) -> None:
    for token, role, name in ROLES:
        async with raw(served, token) as client:
            assert client.welcome["role"] == role
            assert client.welcome.get("tenant") == name
            assert "--dev" in client.welcome["warning"]


async def test_development_tokens_work_only_with_dev(server_store: str) -> None:
    async with running(server_store, dev=False) as served:
        for token in [tenant("ada"), WORKER, OPERATOR, PRODUCER]:
            with pytest.raises(Unauthorized):
                async with raw(served, token):
                    pass


NO_TOKENS: list[str] = [
    "dev-", "dev-root", "dev-tenant:", "dev-tenant:a/b", "dev-tenant:a:b", "fq_worker_0123_ab_00000000", "x",
]  # fmt: skip


async def test_other_texts_are_no_tokens(served: Served) -> None:
    for token in NO_TOKENS:
        with pytest.raises(Unauthorized):
            async with raw(served, token):
                pass


async def test_tokens_let_in_as_the_role_they_were_made_for(server_store: str) -> None:
    async with running(server_store) as dev, running(server_store, dev=False) as served:
        async with raw(dev, OPERATOR) as operator:
            by_role = {role: (await operator.create_token(role))[1] for role in Role}
        for role, token in by_role.items():
            async with raw(served, token) as client:
                assert client.welcome["role"] == role.value
                assert "warning" not in client.welcome
                if role is Role.TENANT:
                    assert await client.enqueue("q", ["a"]) == ["ok"]


async def test_a_wrong_secret_or_a_typing_error_is_refused(served: Served, operator: Raw) -> None:
    id, token = await operator.create_token(Role.WORKER)
    forged = make_token(Role.WORKER)[1].split("_")
    forged[2] = id
    wrong_secret = "_".join(forged[:4])
    typo = token[:-1] + ("0" if token[-1] != "0" else "1")
    for text in (wrong_secret, typo, token.upper(), token[:-9], f"{token}x"):
        with pytest.raises(Unauthorized):
            async with raw(served, text):
                pass


async def test_a_forged_token_with_a_right_checksum_is_refused_by_its_hash(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[str, str]] = []
    honest = hmac.compare_digest

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return honest(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    async with raw(served, OPERATOR) as operator:
        id, token = make_token(Role.WORKER)
        await operator.ask("create_token", id=id, role="worker", hash=hash_token(token + "another"))
        with pytest.raises(Unauthorized):
            async with raw(served, token):
                pass
    assert compared == [(hash_token(token + "another"), hash_token(token))]


async def test_the_store_holds_hashes_only(served: Served, redis_store: redis.Redis) -> None:
    async with raw(served, OPERATOR) as operator:
        _, token = await operator.create_token(Role.WORKER)
        (listed,) = (await operator.ask("list_tokens"))["tokens"]
        assert "hash" not in listed
    records: list[Any] = redis_store.hvals(keys.TOKENS)
    held = b" ".join(records)
    assert hash_token(token).encode() in held
    assert token.encode() not in held
    assert token.split("_")[3].encode() not in held


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("action", ["revoke at this server", "revoke at another server"])
async def test_a_revoked_token_closes_its_live_connections(server_store: str, action: str, served: Served) -> None:
    async with (
        running(server_store) as other,
        raw(served if action.endswith("this server") else other, OPERATOR) as operator,
    ):
        (_, doomed), (_, spared) = [await operator.create_token(Role.WORKER) for _ in range(2)]
        async with raw(served, doomed) as one, raw(served, spared) as two:
            await operator.ask("revoke_token", id=doomed.split("_")[2])
            assert await one.closed() == (4001, "the token was revoked")
            await two.attach("q")
        with pytest.raises(Unauthorized):
            async with raw(served, doomed):
                pass


async def revoked_worker(served: Served, worker: Raw, token: str) -> Connection:
    """Attach a worker with room, whose token is to be revoked; returns the server's end."""
    await worker.attach("q", credit=10)
    return next(
        connection for connection in served.app.connections if connection.identity.token_id == token.split("_")[2]
    )


async def test_nothing_is_pushed_once_a_revocation_is_heard(served: Served, operator: Raw, ada: Raw) -> None:
    """Also not what waits to be sent, nor while the store is asked what other tokens there are."""
    _, token = await operator.create_token(Role.WORKER)
    async with raw(served, token) as worker, raw(served, WORKER) as heir:
        connection = await revoked_worker(served, worker, token)
        await heir.attach("q", credit=0)
        connection.session.push("q", 1000, [Lease("ada/waits", 1, 1, 5, "ada", 1, 0, 0, b"1")])
        served.app.on_message(keys.REVOKED, connection.identity.token_id)
        assert free_of(connection) == 0
        assert not connection.session.has_outgoing
        await ada.enqueue("q", ["a"])
        await heir.ask("credit", credit=1)
        assert (await heir.pushed())[0]["id"] == "a"
        assert await worker.closed() == (4001, "the token was revoked")
        assert not worker.pushes


async def test_a_revocation_that_was_not_heard_is_seen_all_the_same(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = App.on_message

    def heard_less(app: App, channel: str, message: str = "") -> None:
        if channel != keys.REVOKED:
            heard(app, channel, message)

    monkeypatch.setattr(App, "on_message", heard_less)
    monkeypatch.setattr("fairq.server.engine.net.revocations.POLL_S", 0.05)
    async with running(server_store) as served, raw(served, OPERATOR) as operator:
        _, token = await operator.create_token(Role.WORKER)
        async with raw(served, token) as worker:
            await revoked_worker(served, worker, token)
            await operator.ask("revoke_token", id=token.split("_")[2])
            assert await worker.closed() == (4001, "the token was revoked")


async def test_a_revocation_reaches_a_server_whose_store_was_away_meanwhile(
    operator: Raw, proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscription is back first, and the first questions for tokens go wrong."""
    async with running(proxied) as two:
        _, token = await operator.create_token(Role.TENANT)
        async with raw(two, token) as client:
            call, failures = type(two.app.store.connection).call, 0

            async def fail_first(self: Any, *command: Any, **hold: Any) -> Any:
                nonlocal failures
                if self is two.app.store.connection and failures < 3 and command[0] in ("GET", "HGETALL", "HMGET"):
                    failures += 1
                    raise Unavailable("the store is away")
                return await call(self, *command, **hold)

            monkeypatch.setattr(type(two.app.store.connection), "call", fail_first)
            proxy.is_refusing = True
            proxy.cut()
            await operator.ask("revoke_token", id=token.split("_")[2])
            proxy.is_refusing = False
            assert await client.closed() == (4001, "the token was revoked")
        assert failures == 3


async def test_a_store_that_is_away_says_unavailable_not_unauthorized(served: Served) -> None:
    connection: Any = served.app.store.connection
    connection.is_connected = False
    try:
        with pytest.raises(Unavailable) as caught:
            async with raw(served, make_token(Role.WORKER)[1]):
                pass
    finally:
        connection.is_connected = True
    assert "no connection to the store" in str(caught.value)
    assert str(connection.address.port) not in str(caught.value)  # strangers do not learn where the store is


def test_made_tokens_are_long_and_different() -> None:
    texts = {make_token(Role.TENANT)[1] for _ in range(100)}
    assert len(texts) == 100
    for text in texts:
        prefix, role, id, secret, check = text.split("_")
        assert (prefix, role, len(id), len(secret), len(check)) == ("fq", "tenant", 12, 40, 8)
