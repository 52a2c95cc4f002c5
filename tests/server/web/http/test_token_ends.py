"""A token that is revoked, or that the server remembers no more, while its requests wait."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from fairq.server.run import Served
from fairq.server.web.http import connections
from fairq.wire.terms import CLOSE_REVOKED, Role
from tests.server.harness import WORKER, Raw, raw
from tests.store.waiting import wait_until

from .harness import api, check, check_problem, head, plain, read_until

EVENTS, TASKS = "/v1/queues/q/events", "/v1/queues/q/tasks"


def waits(served: Served) -> int:
    """How many requests wait over HTTP."""
    return sum(len(each._waits) for each in served.app.connections) + served.app.queues.count_slots("q")


@pytest.mark.parametrize("role", [Role.TENANT, Role.WORKER])
async def test_what_waits_is_refused_when_the_token_is_revoked(served: Served, role: Role, operator: Raw) -> None:
    answers: list[httpx.Response] = []
    id, token = await operator.create_token(role)
    async with api(served, token) as client, trio.open_nursery() as nursery:

        async def wait() -> None:
            if role is Role.WORKER:
                answers.append(await client.post("/v1/queues/q/claims", json={"wait": 60}))
            else:
                answers.append(await client.get(f"{TASKS}/t", params={"wait": 60}))

        if role is Role.TENANT:
            check(await client.post(TASKS, json={"payload": 1, "id": "t"}), 201)
        nursery.start_soon(wait)
        await wait_until(lambda: waits(served) >= 1)
        await operator.ask("revoke_token", id=id)
    check_problem(answers[0], 401, "unauthorized")
    async with api(served, token) as client:
        check_problem(await client.get(f"{TASKS}/t"), 401, "unauthorized")
    async with raw(served, WORKER) as worker:  # nothing was taken along
        await worker.attach("q", credit=1)
        if role is Role.TENANT:
            assert [task["attempt"] for task in await worker.pushed(1)] == [1]


async def test_a_stream_ends_with_the_token_as_a_websocket_does(served: Served, operator: Raw) -> None:
    id, token = await operator.create_token(Role.TENANT)
    async with raw(served, token) as websocket, plain(served) as stream:
        await stream.send_all(head("GET", EVENTS, token))
        await read_until(stream, b": nothing new\n\n")
        await wait_until(lambda: waits(served) == 1)
        await operator.ask("revoke_token", id=id)
        received = await read_until(stream, b"0\r\n\r\n")
        assert b"event: error\ndata: {" in received
        assert b'"code":"unauthorized"' in received
        assert (await websocket.closed())[0] == CLOSE_REVOKED


async def test_a_token_in_use_is_remembered_however_long_its_requests_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairq.server.engine.long_poll.POLL_S", 0.05)  # between two looks for who has gone
    answers: list[httpx.Response] = []
    async with api(served) as ada, raw(served, WORKER) as worker, trio.open_nursery() as nursery:

        async def wait() -> None:
            answers.append(await ada.get(f"{TASKS}/t", params={"wait": 60}))

        check(await ada.post(TASKS, json={"payload": 1, "id": "t", "events": True}), 201)
        async with plain(served) as stream:
            await stream.send_all(head("GET", EVENTS))
            await read_until(stream, b": nothing new\n\n")
            nursery.start_soon(wait)
            await wait_until(lambda: waits(served) == 2)
            callers = [each for each in served.app.connections if isinstance(each, connections.HttpConnection)]
            monkeypatch.setattr(connections, "CALLER_S", 0.0)  # the time after a request is over
            check(await ada.get(f"{TASKS}/t"))  # it ends, and the token's other requests go on
            await worker.attach("q", credit=1)
            await worker.settle("q", "ack", *await worker.pushed(1))
            assert b'"task":"t"' in await read_until(stream, b"}\n\n")
        await wait_until(lambda: served.app.connections == {worker_of(served)})
    assert check(answers[0])["state"] == "done"
    assert len(callers) == 1


def worker_of(served: Served) -> Any:
    """The connection of the websocket."""
    (found,) = (each for each in served.app.connections if not isinstance(each, connections.HttpConnection))
    return found
