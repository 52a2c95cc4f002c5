"""The typed store on a real one: lost replies, ids used again, calls in parts, tokens, errors of the store itself."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
import redis
import trio

from fairq.errors import OutcomeUnknown, StoreRefused
from fairq.model.tasks import NewTask, Settlement, TaskState
from fairq.store import keys
from fairq.store.opening import open_store
from fairq.store.store import Store

from .proxy import open_proxy

Q = "emails"


async def put(store: Store, *ids: str, tenant: str = "ada", **options: Any) -> None:
    """Enqueue tasks whose payload is their id."""
    tasks = [NewTask(id, orjson.dumps(id), **options) for id in ids]
    assert await store.enqueue(Q, tenant, tasks) == ["ok"] * len(ids)


async def state(store: Store, id: str) -> TaskState:
    """Read one task's state."""
    (found,) = await store.tasks(Q, [id])
    return found


async def test_tasks_of_many_batches_with_long_callbacks_take_several_calls(store: Store) -> None:
    ids, long = [f"a{n}" for n in range(20)], b"c" * 65_535
    for id in ids:
        assert await store.open_batch(Q, "ada", f"batch-{id}", 0, [long] * 3)
    tasks = [NewTask(id, b"1", batch=f"batch-{id}") for id in ids]
    assert await store.enqueue(Q, "ada", tasks) == ["ok"] * 20
    assert await store.enqueue(Q, "ada", tasks) == ["duplicate\nready"] * 20
    assert await store.reschedule(Q, ids, delay_ms=60_000) == ["ok"] * 20
    assert await store.cancel_waiting(Q, ids[:10]) == 10
    assert await store.cancel(Q, ids) == ["gone"] * 10 + ["ok"] * 10


async def test_tokens_are_written_once_and_their_end_is_announced(store: Store, store_url: str) -> None:
    heard = trio.Event()

    def listen(channel: str, _: str) -> None:
        if channel == keys.REVOKED:
            heard.set()

    with trio.fail_after(30):
        async with open_store(store_url, on_message=listen) as other:
            await other.subscription.add(keys.REVOKED, sharded=False)
            assert await store.tokens.write("abcd", b"{}") is True
            assert await store.tokens.write("abcd", b"other") is False
            assert await other.tokens.read("abcd") == b"{}"
            assert await other.tokens.read("none") is None
            assert await store.tokens.delete("abcd") is True
            assert await store.tokens.delete("abcd") is False
            assert await other.tokens.read_all() == []
            await heard.wait()


async def test_an_error_of_the_store_itself_is_reported_as_such(store: Store, redis_client: redis.Redis) -> None:
    redis_client.set(f"{keys.queue_prefix(Q)}:tasks", "not a hash")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await store.enqueue(Q, "ada", [NewTask("a", b"1")])


async def test_a_claim_whose_reply_was_lost_is_given_once_more(store_port: int) -> None:
    with trio.fail_after(30):
        async with open_proxy(store_port) as proxy, open_store(f"redis://127.0.0.1:{proxy.port}/0") as store:
            await put(store, "a", "b", "c")
            proxy.lose_next_reply()
            with pytest.raises(OutcomeUnknown):
                await store.claim(Q, "server-1/7", 2)
            await store.connection.wait_connected()
            again = await store.claim(Q, "server-1/7", 2, again=True)
            assert sorted(lease.id for lease in again.leases) == ["a", "b"]
            assert {lease.attempt for lease in again.leases} == {1}
            assert [lease.id for lease in (await store.claim(Q, "server-1/8", 2)).leases] == ["c"]
            assert (
                await store.settle(Q, [Settlement("ack", each.id, each.lease) for each in again.leases]) == ["ok"] * 2
            )
