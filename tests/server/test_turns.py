"""Turns for the processor: however much one tenant asks at once, few of its requests stand before those of others."""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.lowlevel

from fairq.io.turns import Gate
from fairq.model.rates import Rate
from fairq.server.engine.net.admission import HTTP_PER_TURN, PER_TURN, Usage
from fairq.server.engine.net.connection import LONG_TEXT_S, RESTS, Connection
from fairq.server.web.http.bodies import Inbox
from fairq.server.web.http.bounds import FREE_PARTS
from fairq.server.web.http.guard import INBOX, STREAM, Guard

from .test_connection import SlowClient, Turns, connected


def of_tenant(usage: Usage) -> Connection:
    connection = connected(SlowClient(0.0, []))
    connection.usage, connection.turns = usage, usage.turns
    return connection


def fast() -> Usage:
    """The usage of a tenant with rates that do not delay it."""
    return Usage(Rate(1e6, 1e6), Rate(1e9, 1e9))


async def test_a_few_messages_of_a_tenant_begin_in_one_turn_and_others_do_not_wait_for_them(
    autojump_clock: object,
) -> None:
    turns, busy, began = Turns(), fast(), list[tuple[str, int]]()
    trio.lowlevel.add_instrument(turns)

    async def ask(name: str, connection: Connection) -> None:
        await connection.wait_turn(10)
        began.append((name, turns.count))

    async with trio.open_nursery() as nursery:
        for _ in range(20 * PER_TURN):
            nursery.start_soon(ask, "busy", of_tenant(busy))
        await trio.lowlevel.checkpoint()
        first = turns.count
        nursery.start_soon(ask, "other", of_tenant(fast()))
    assert max(Counter(turn for name, turn in began if name == "busy").values()) <= PER_TURN
    assert next(turn for name, turn in began if name == "other") <= first + 1


async def test_long_messages_that_came_at_once_are_read_one_by_one_with_rests(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    took_s, cpu, usage, read = 2 * LONG_TEXT_S, iter(range(1_000)), fast(), list[float]()
    monkeypatch.setattr("fairq.server.engine.net.connection.thread_time", lambda: next(cpu) * took_s)

    async def ask(connection: Connection) -> None:
        await connection.wait_turn(10)
        connection.read(lambda _: read.append(trio.current_time()), b" " * (1 << 20))

    async with trio.open_nursery() as nursery:
        for _ in range(PER_TURN):
            nursery.start_soon(ask, of_tenant(usage))
    assert all(later - sooner >= RESTS * took_s * 0.99 for sooner, later in itertools.pairwise(read))


class Nobody:
    """Knows no token."""

    def known(self, key: str) -> None:
        """Return no connection."""

    async def find(self, token: str, address: str) -> None:
        raise AssertionError


@pytest.mark.parametrize("path", ["/openapi.json", "/v1/queues/q/tasks"])
async def test_a_few_requests_without_a_token_are_answered_in_one_turn(path: str, autojump_clock: object) -> None:
    turns, answered = Turns(), list[int]()
    trio.lowlevel.add_instrument(turns)

    async def api(scope: Any, receive: Any, send: Any) -> None:
        answered.append(turns.count)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.append(turns.count)

    async def receive() -> Any:
        raise AssertionError

    app: Any = SimpleNamespace(settings=SimpleNamespace(message_bytes=1))
    guard, gate = Guard(api, app, Nobody()), Gate(HTTP_PER_TURN)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            inbox = Inbox(receive, gate)
            scope = {"type": "http", "method": "GET", "path": path, "headers": [], INBOX: inbox, STREAM: None}
            nursery.start_soon(guard, scope, receive, send)
    assert len(answered) == 20
    assert max(Counter(answered).values()) <= HTTP_PER_TURN


async def test_one_part_of_a_body_that_has_many_is_read_in_one_turn(autojump_clock: object) -> None:
    """Chunks of one byte cost a thousand times as much as the same body in one piece."""
    turns, gate, read = Turns(), Gate(HTTP_PER_TURN), list[int]()
    trio.lowlevel.add_instrument(turns)

    async def receive() -> Any:
        await trio.lowlevel.checkpoint()
        read.append(turns.count)
        return {"type": "http.request", "body": b"x", "more_body": len(read) < 500}

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(Inbox(receive, gate).read, 1_000, lambda _: None)
    assert len(read) >= 500
    assert max(Counter(read[20 * FREE_PARTS :]).values()) <= HTTP_PER_TURN
