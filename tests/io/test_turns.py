"""What leaves at the end of a scheduler's turn, and sockets that are used without waiting."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from fairq.io.sockets import receive_some, send_now
from fairq.io.turns import Gate, at_end_of_turn, before_sending, call_from_end, turn_time
from tests.logs import captured_logs


async def test_what_is_asked_in_a_turn_is_done_once_before_the_scheduler_waits() -> None:
    done: list[str] = []

    def send() -> None:
        done.append("sent")

    async def ask() -> None:
        at_end_of_turn(send)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert len(done) <= 1
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["sent"]
    await trio.testing.wait_all_tasks_blocked()
    assert done == ["sent"]


async def test_what_is_decided_at_the_end_leaves_with_the_rest() -> None:
    done: list[str] = []

    def send() -> None:
        done.append("sent")

    def decide() -> None:
        done.append("decided")
        at_end_of_turn(send)

    at_end_of_turn(send)
    before_sending(decide)
    await trio.lowlevel.checkpoint()
    assert done == ["decided", "sent"]
    await trio.lowlevel.checkpoint()
    assert done == ["decided", "sent"]


async def test_an_error_is_logged_and_the_others_send() -> None:
    done: list[str] = []

    def fail() -> None:
        raise RuntimeError("broken")

    with captured_logs() as logs:
        for _ in range(2):
            at_end_of_turn(fail)
            at_end_of_turn(lambda: done.append("sent"))
            await trio.lowlevel.checkpoint()
    assert done == ["sent", "sent"]
    assert [entry["event"] for entry in logs] == ["sending failed"] * 2


async def test_a_task_that_is_woken_from_the_end_runs_at_once() -> None:
    woken = trio.Event()
    at_end_of_turn(lambda: call_from_end(woken.set))
    with trio.fail_after(30):  # the scheduler had made up its mind to sleep until then
        await woken.wait()


async def test_a_task_is_woken_within_a_turn_without_a_detour() -> None:
    woken = trio.Event()
    call_from_end(woken.set)
    assert woken.is_set()


async def test_the_time_of_a_turn_stands_until_its_end(autojump_clock: trio.testing.MockClock) -> None:
    first, seen = turn_time(), list[float]()
    at_end_of_turn(lambda: seen.append(turn_time()))
    autojump_clock.jump(1)
    assert turn_time() == first
    await trio.sleep(10)
    assert seen == [first]
    assert turn_time() == trio.current_time() >= first + 10


async def test_a_gate_lets_those_through_first_that_came_first() -> None:
    gate, came, passed = Gate(1), list[int](), list[int]()  # trio runs the tasks of a turn in any order

    async def pass_through(number: int) -> None:
        came.append(number)
        with trio.CancelScope() as scope:
            if len(came) == 5:
                scope.cancel()
            await gate.enter()
            passed.append(number)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(pass_through, number)
        assert passed == came[:4] + came[5:]
        await gate.enter()  # open again


async def test_thousands_at_a_gate_leave_turns_to_others() -> None:
    gate, most = Gate(3), 0
    passed = 0

    async def pass_through() -> None:
        nonlocal passed
        await gate.enter()
        passed += 1

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(1_000):
                nursery.start_soon(pass_through)
            before = passed
            while passed < 1_000:
                await trio.lowlevel.checkpoint()
                most, before = max(most, passed - before), passed
    assert 0 < most <= 2 * 3, "two turns may have passed between two looks"


async def test_another_run_sends_by_itself() -> None:
    done: list[str] = []

    async def other() -> None:
        at_end_of_turn(lambda: done.append("other"))
        await trio.testing.wait_all_tasks_blocked()

    at_end_of_turn(lambda: done.append("ours"))
    await trio.to_thread.run_sync(trio.run, other)
    assert sorted(done) == ["other", "ours"]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[trio.SocketStream, socket.socket]]:
    """Two ends of a connection; the first is trio's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        yield stream, theirs
        await stream.aclose()


async def test_a_socket_takes_what_it_has_room_for(ends: tuple[trio.SocketStream, socket.socket]) -> None:
    stream, theirs = ends
    assert send_now(stream, b"hello") == 5
    assert theirs.recv(100) == b"hello"
    whole = b"x" * (16 << 20)
    sent = send_now(stream, whole)
    assert 0 < sent < len(whole)
    assert send_now(stream, whole) == 0, "it is full"


async def test_a_broken_socket_and_a_stranger_take_nothing(ends: tuple[trio.SocketStream, socket.socket]) -> None:
    stream, theirs = ends
    theirs.close()
    assert send_now(stream, b"hello") == 0
    await stream.aclose()
    assert send_now(stream, b"hello") == 0
    assert send_now(trio.testing.memory_stream_pair()[0], b"hello") == 0


async def test_a_connection_that_is_reset_breaks_and_one_that_we_closed_is_closed() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, trio.fail_after(30):
        stream = await trio.open_tcp_stream(*listener.getsockname())
        other, _ = listener.accept()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        other.close()
        with pytest.raises(trio.BrokenResourceError):
            await receive_some(stream, 10)
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await receive_some(stream, 10)
