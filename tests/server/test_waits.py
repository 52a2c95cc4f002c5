"""Waits for the ends of tasks, as the server answers them: bit by bit, each read once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fairq.model.checks import full_id
from fairq.model.tasks import MAX_RESULT_BYTES, NewTask, Settlement, TaskState
from fairq.server.engine.net.socket_connection import SocketConnection
from fairq.server.run import Served
from fairq.store import keys
from fairq.store.store import Store
from fairq.wire.terms import MAX_WAITING, MESSAGE_BYTES
from tests.store.waiting import wait_until

from .harness import Raw, Refused, raw, tenant

IDS = [f"t{n}" for n in range(500)]


async def add(served: Served, *ids: str) -> None:
    """Enqueue tasks of ada's whose results are kept."""
    await served.app.store.enqueue("q", "ada", [NewTask(full_id("ada", id), b"1", result_ttl_ms=60_000) for id in ids])


async def finish(served: Served, count: int, result: bytes = b"1") -> list[str]:
    """Have the next tasks done; returns their ids, as ada chose them."""
    store = served.app.store
    ids: list[str] = []
    while len(ids) < count:
        leases = (await store.claim("q", "w", count - len(ids))).leases
        done = [Settlement("ack", each.id, each.lease, result=result) for each in leases]
        assert await store.settle("q", done) == ["ok"] * len(leases)
        ids += [each.id.removeprefix("ada/") for each in leases]
    return ids


async def waited_for(served: Served, *ids: str) -> None:
    """Wait until requests wait for the ends of exactly these tasks."""
    wanted = {keys.END + full_id("ada", id) for id in ids}
    polls = served.app.queues.long_polls
    await wait_until(lambda: (polls["q"]._watches.keys() if "q" in polls else set()) == wanted)


def listens(served: Served, id: str) -> bool:
    """Tell whether the request that waits for the end of a task has read all that it has heard of."""
    (watch,) = served.app.queues.long_polls["q"]._watches[keys.END + full_id("ada", id)]
    return not watch.heard and watch._woken.statistics().tasks_waiting == 1


@pytest.fixture
def read_ids(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    read, tasks = [], Store.tasks

    async def note(self: Store, queue: str, ids: Sequence[str]) -> list[TaskState]:
        states = await tasks(self, queue, ids)
        read.append([id.removeprefix("ada/") for id in ids])
        return states

    monkeypatch.setattr(Store, "tasks", note)
    return read


async def begin(ada: Raw, *ids: str, timeout_ms: int = 60_000) -> None:
    """Begin to wait, without reading the answer."""
    await ada.send("wait_tasks", ref=7, queue="q", ids=list(ids), timeout_ms=timeout_ms)


@pytest.mark.usefixtures("no_polls")
async def test_each_end_is_reported_when_it_happens_and_only_that_task_is_read(
    served: Served, read_ids: list[list[str]]
) -> None:
    async with raw(served, tenant("ada")) as ada:
        await add(served, *IDS)
        await begin(ada, *IDS)
        await waited_for(served, *IDS)
        await wait_until(lambda: len(read_ids) == 2)  # the second time since messages are heard from now on
        for _ in range(3):
            (id,) = await finish(served, 1)
            frame = await ada.receive()
            assert frame == {"type": "ended", "ref": 7, "tasks": [{"id": id, "state": "done", "result": 1}]}
            assert read_ids[-1] == [id]
        left = set(await finish(served, 497))
        while (frame := await ada.receive())["type"] == "ended":
            left -= {row["id"] for row in frame["tasks"]}
        assert left == {row["id"] for row in frame["body"]["tasks"]}
    assert sum(map(len, read_ids)) == 3 * 500


@pytest.mark.usefixtures("no_polls")
async def test_an_end_during_the_first_read_is_not_missed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Store.tasks

    async def late(self: Store, queue: str, ids: Sequence[str]) -> list[TaskState]:
        states = await tasks(self, queue, ids)
        if len(ids) == 2:
            watches = served.app.queues.long_polls["q"]._watches
            (id,) = await finish(served, 1)
            (watch,) = watches[keys.END + full_id("ada", id)]
            await wait_until(lambda: bool(watch.heard))
        return states

    monkeypatch.setattr(Store, "tasks", late)
    async with raw(served, tenant("ada")) as ada:
        await add(served, "a", "b")
        await begin(ada, "a", "b")
        assert [row["id"] for row in (await ada.receive())["tasks"]] == ["a"]


async def test_a_lost_message_is_made_up_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.server.engine.long_poll.POLL_S", 0.05)
    monkeypatch.setattr("fairq.server.engine.long_poll.LongPolls.on_message", lambda *_: None)
    async with raw(served, tenant("ada")) as ada:
        await add(served, "a", "b")
        await begin(ada, "a", "b")
        await waited_for(served, "a", "b")
        await finish(served, 1)
        assert [row["id"] for row in (await ada.receive())["tasks"]] == ["a"]


async def test_long_results_come_in_several_frames_and_none_is_left_out(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada:
        await add(served, *IDS[:20])
        await finish(served, 20, b'"' + b"x" * (MAX_RESULT_BYTES - 2) + b'"')
        await begin(ada, *IDS[:20], timeout_ms=0)
        frames = [await ada.receive()]
        while frames[-1]["type"] == "ended":
            frames.append(await ada.receive())
    sizes = [sum(len(row["result"]) for row in frame.get("tasks") or frame["body"]["tasks"]) for frame in frames]
    assert sum(sizes) == 20 * (MAX_RESULT_BYTES - 2)
    assert max(sizes) < MESSAGE_BYTES


@pytest.mark.usefixtures("no_polls")
async def test_a_server_that_stops_tells_what_it_knows_first(served: Served, read_ids: list[list[str]]) -> None:
    async with raw(served, tenant("ada")) as ada:
        await add(served, "a", "b")
        await begin(ada, "a", "b")
        await waited_for(served, "a", "b")
        await wait_until(lambda: len(read_ids) == 2 and listens(served, "a"))  # else it may stop before the end
        served.app.is_draining = True
        await finish(served, 1)
        frames = [await ada.receive(), await ada.receive()]
    assert [frame["type"] for frame in frames] == ["ended", "error"]
    assert frames[1]["code"] == "draining"


@pytest.mark.usefixtures("no_polls")
async def test_each_id_counts_until_its_end_is_reported(served: Served, ada: Raw) -> None:
    (ids, more), most = (IDS[:250], IDS[250:]), MAX_WAITING // 250
    await add(served, *ids)
    for ref in range(most):
        await ada.send("wait_tasks", ref=1_000 + ref, queue="q", ids=ids, timeout_ms=60_000)
    (connection,) = served.app.connections
    await wait_until(lambda: connection._waited_for == most * 250)
    assert isinstance(connection, SocketConnection)
    assert connection._held_bytes == 0, "thousands of short requests may wait, and others are read meanwhile"
    with pytest.raises(Refused, match="too many waits"):
        await ada.ask("wait_tasks", queue="q", ids=more, timeout_ms=60_000)
    await finish(served, 200)
    await wait_until(lambda: connection._waited_for == most * 50)
    assert (await ada.ask("wait_tasks", queue="q", ids=more[:200], timeout_ms=60_000))["tasks"]
    await finish(served, 50)
    await wait_until(lambda: connection._waited_for == 0)
    await add(served, "late")
    assert (await ada.ask("wait_tasks", queue="q", ids=["late"], timeout_ms=1))["tasks"] == []
    assert connection._waited_for == 0


async def test_nothing_is_watched_after_the_end(served: Served) -> None:
    async with raw(served, tenant("ada")) as ada:
        await add(served, "a")
        await begin(ada, "a")
        await waited_for(served, "a")
    await waited_for(served)
