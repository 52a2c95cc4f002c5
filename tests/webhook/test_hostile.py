"""Receivers that are broken, slow or hostile: each costs an attempt of its own task, and others little."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import httpcore2
import pytest
import trio

import fairq
from fairq.webhook import deliverer as module
from fairq.webhook.deliverer import MAX_CAUSE_CHARS
from fairq.webhook.network import ANSWER_BYTES, READ_BYTES
from tests.store.cases import case

from .harness import PUBLIC, bench, resolving
from .receiver import Receiver, Reply, answering, reply, silent


async def test_redirects_are_not_followed(autojump_clock: object) -> None:
    for status in [301, 302, 303, 307, 308]:
        with case(status):
            to = reply(status, location="http://127.0.0.1/admin")
            async with bench(Receiver(answering(to)), resolve=resolving([PUBLIC], ["127.0.0.1"])) as bench_:
                with pytest.raises(fairq.Retry):
                    await bench_.deliver()
            assert bench_.network.dialled == [(PUBLIC, 80)]
            assert len(bench_.receiver.requests) == 1


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "half a body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a status line of control characters": b"HTTP/1.1 " + b"\x01" * 90_000 + b"\r\n\r\n",  # an error quotes it
    "an endless head": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_a_broken_answer_is_tried_again(answer: bytes, autojump_clock: object, logged: list[Any]) -> None:
    async with bench(Receiver(answering(answer))) as bench_:
        with pytest.raises(fairq.Retry, match=r"hooks\.example cannot be reached: \w+") as caught:
            await bench_.deliver()
    assert caught.value.delay_ms is None
    assert [line["event"] for line in logged] == ["retry"]
    assert len(logged[0]["reason"]) <= len("hooks.example cannot be reached: ") + MAX_CAUSE_CHARS


async def never(host: str, port: int) -> list[str]:
    """Resolve nothing, for ever."""
    await trio.sleep_forever()
    raise AssertionError


def test_the_cause_of_an_error_without_a_text_is_its_kind() -> None:
    assert module._cause(httpcore2.ReadError(trio.BrokenResourceError())) == "BrokenResourceError"


async def test_tiny_parts_of_an_answer_leave_others_their_turns(autojump_clock: object) -> None:
    """A chunk of one byte costs the client as much as one of 64 KiB."""
    chunks = b"1\r\nx\r\n" * 20_000
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    async with bench(Receiver(answering(whole))) as bench_, trio.open_nursery() as nursery:
        nursery.start_soon(take_turns)
        assert await bench_.deliver() == "x" * 20_000
        nursery.cancel_scope.cancel()
    assert turns >= len(chunks) // READ_BYTES


async def test_interim_answers_without_end_are_given_up(autojump_clock: object) -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    endless = Receiver(answering(interim * (ANSWER_BYTES // len(interim) + 1)))
    async with bench(endless) as bench_:
        with pytest.raises(fairq.Retry, match=f"the answer has more than {ANSWER_BYTES} bytes"):
            await bench_.deliver()
        assert not bench_.deliverer.pool.connections
        endless.answer = answering(reply(200, b"x" * (ANSWER_BYTES // 8)))
        for _ in range(9):  # each answer on a connection has its own bound
            await bench_.deliver()
    assert endless.connections == 2


async def test_a_thousand_headers_do_no_harm(autojump_clock: object) -> None:
    answer = reply(200, b"1", content_type="application/json", **{f"x_{n}": "y" for n in range(1_000)})
    async with bench(Receiver(answering(answer))) as bench_:
        assert await bench_.deliver() == 1


SLOW: dict[str, Callable[..., Any]] = {
    "the name": partial(bench, Receiver(), resolve=never),
    "the connection": partial(bench, Receiver(), slow=frozenset({PUBLIC})),
    "the answer": partial(bench, Receiver(silent)),
    "the body, for ever a byte a second": partial(
        bench, Receiver(answering(Reply(200, {"transfer-encoding": "chunked"}, [b"x"] * 1_000, 1.0)))
    ),
}


@pytest.mark.parametrize("open_bench", SLOW.values(), ids=SLOW)
async def test_the_timeout_is_for_all_of_a_request(
    open_bench: Callable[..., Any], autojump_clock: object, logged: list[Any]
) -> None:
    async with open_bench(timeout=7.5) as bench_:
        await trio.sleep(1)
        began = trio.current_time()
        with pytest.raises(fairq.Retry, match=r"hooks.example did not answer within 7.5 s") as caught:
            await bench_.deliver()
        assert trio.current_time() - began == pytest.approx(7.5)
        assert caught.value.delay_ms is None
        assert not bench_.deliverer.pool.connections
    assert [line["ms"] for line in logged] == [pytest.approx(7_500)]


async def test_an_endless_refusal_is_not_read(autojump_clock: object) -> None:
    endless = Reply(410, {"transfer-encoding": "chunked"}, (b"x" * 1_000 for _ in iter(int, 1)), 1.0)
    async with bench(Receiver(answering(endless))) as bench_:
        began = trio.current_time()
        with pytest.raises(fairq.Reject):
            await bench_.deliver()
        assert trio.current_time() == began
