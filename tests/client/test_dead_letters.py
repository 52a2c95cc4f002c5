"""Dead letters in the SDK: walks, and sweeps at a rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

import pytest
import trio

import fairq
from fairq.client.dead_letters import DeadLetters
from fairq.client.requests import Requests
from fairq.model.dead_letters import Sweep
from fairq.model.tasks import Settlement
from fairq.server.run import Served
from tests.server.harness import OPERATOR, tenant, url_of
from tests.store.cases import case


async def bury(served: Served, client: fairq.Client, ids: Iterable[str], error: str = "no") -> None:
    """Make dead letters; nothing else may be ready."""
    tasks = await client.enqueue_many("emails", [{"id": id} for id in ids], ids=list(ids))
    store = served.app.store
    for start in range(0, len(tasks), 100):
        leases = (await store.claim("emails", "w", len(tasks[start : start + 100]))).leases
        rejected = [Settlement("reject", lease.id, lease.lease, None, error) for lease in leases]
        await store.settle("emails", rejected)


async def last(sweep: Any) -> Sweep:
    async with aclosing(sweep) as steps:
        reached = [step async for step in steps][-1]
    assert isinstance(reached, Sweep)
    return reached


async def test_a_tenant_walks_over_its_letters_and_looks_into_one(served: Served, ada: fairq.Client) -> None:
    await bury(served, ada, ["a", "b"], "500 from mail")
    await bury(served, ada, ["c"], "no such street")
    letters = ada.dead_letters("emails")
    found = [letter async for letter in letters.walk()]
    assert [(letter.id, letter.payload) for letter in found] == [(id, {"id": id}) for id in "abc"]
    assert [letter.id async for letter in letters.walk(error="street", reason="rejected", brief=True)] == ["c"]
    assert [letter.id async for letter in letters.walk(older_than=3600)] == []
    assert [letter.id async for letter in letters.walk(younger_than=3600.0)] == ["a", "b", "c"]
    assert await letters.show("b") == found[1]
    assert (found[1].attempts, found[1].error) == (1, "500 from mail")
    assert 0 < found[1].enqueued_at_ms <= found[1].died_at_ms
    page = await letters.page(count=2, brief=True)
    assert ([letter.payload for letter in page.letters], page.left) == ([None, None], 1)
    assert [letter.id for letter in (await letters.page(cursor=page.cursor)).letters] == ["c"]


async def test_named_letters_are_replayed_and_purged_once(served: Served, ada: fairq.Client) -> None:
    ids = [f"id{n}" for n in range(510)]
    await bury(served, ada, ids)
    letters = ada.dead_letters("emails")
    assert await letters.replay(ids[:505]) == ["ok"] * 505
    assert await letters.replay(ids[:1]) == ["gone"]
    assert await letters.purge(ids[500:]) == ["gone"] * 5 + ["ok"] * 5
    assert await letters.replay([]) == []
    assert (await served.app.store.queue("emails")).ready == 505


async def test_a_sweep_changes_what_matches_and_nothing_else(served: Served, ada: fairq.Client) -> None:
    await bury(served, ada, [f"a{n}" for n in range(600)])
    async with fairq.open_client(url_of(served), token=tenant("bob")) as bob:
        await bury(served, bob, [f"b{n}" for n in range(10)])
    async with fairq.open_client(url_of(served), token=OPERATOR) as operator:
        letters = operator.dead_letters("emails")
        assert await last(letters.replay_all(tenant="ada")) == Sweep(600, 0, 0)
        assert await last(letters.replay_all(tenant="ada")) == Sweep(0, 0, 0)
        assert await last(letters.purge_all(error="yes")) == Sweep(0, 0, 0)
        assert await last(letters.purge_all()) == Sweep(10, 0, 0)
        assert (await served.app.store.queue("emails")).ready == 600


async def test_a_sweep_ends_although_what_it_replays_dies_again(served: Served, ada: fairq.Client) -> None:
    store, changed = served.app.store, 0
    await bury(served, ada, [f"id{n}" for n in range(600)])
    async with aclosing(ada.dead_letters("emails").replay_all()) as steps:
        async for step in steps:
            while leases := (await store.claim("emails", "w", 500)).leases:
                await store.settle("emails", [Settlement("reject", lease.id, lease.lease) for lease in leases])
            changed = step.changed
    assert changed == 600
    assert (await store.queue("emails")).dead == 600


class Desk(Requests):
    """Answers as a server with so many dead letters does, the first change after `delay` s; notes what came when."""

    def __init__(self, letters: int, delay: float = 0.0) -> None:
        self.ids = [f"id{n}" for n in range(letters)]
        self.delay, self.timeout = delay, 20.0
        self._caller = self  # type: ignore[assignment]
        self.came: list[tuple[float, int]] = []

    def now(self) -> float:
        return trio.current_time()

    async def sleep_until(self, time: float) -> None:
        await trio.sleep_until(time)

    async def request(
        self, verb: str, body: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        assert body is not None
        if verb == "dead":
            first = int(body.get("cursor", "0"))
            past = min(first + body["count"], len(self.ids))
            row = {"tenant": "ada", "reason": "expired", "attempts": 0, "died_at_ms": 1, "error": ""}
            return {
                "dead": [{"id": id, **row} for id in self.ids[first:past]],
                "cursor": str(past) if past < len(self.ids) else None,
                "left": len(self.ids) - past,
            }
        self.came.append((trio.current_time(), len(body["ids"])))
        await trio.sleep(self.delay if len(self.came) == 1 else 0)
        return {"outcomes": ["ok"] * len(body["ids"])}


async def test_a_sweep_keeps_its_rate(autojump_clock: object) -> None:
    for rate, letters in [(50, 120), (0.5, 5), (10_000, 3_000), (7, 20)]:
        with case(rate, letters):
            desk = Desk(letters)
            begun = trio.current_time()
            assert await last(DeadLetters(desk, "emails").replay_all(rate=rate)) == Sweep(letters, 0, 0)
            step = max(count for _, count in desk.came)
            assert step <= max(1, rate / 10)
            done = 0
            for at, count in desk.came:
                assert done <= rate * (at - begun) + 1e-6, "never ahead of the rate by more than a step"
                done += count
            assert desk.came[-1][0] - begun == pytest.approx((letters - desk.came[-1][1]) / rate), "nor behind"


async def test_a_server_that_was_slow_is_not_flooded_afterwards(autojump_clock: object) -> None:
    desk = Desk(50, delay=3.0)
    await last(DeadLetters(desk, "emails").replay_all(rate=100))
    times = [at for at, _ in desk.came]
    assert [round(later - earlier, 6) for earlier, later in itertools.pairwise(times)] == [3.0, 0.1, 0.1, 0.1]


async def test_without_a_rate_a_sweep_takes_whole_batches(autojump_clock: object) -> None:
    desk = Desk(1_200)
    steps = [step async for step in DeadLetters(desk, "emails").replay_all()]
    assert [count for _, count in desk.came] == [250, 250, 250, 250, 200]
    assert [(step.changed, step.left) for step in steps] == [
        (0, 1_200), (250, 950), (500, 700), (500, 700), (750, 450), (1_000, 200), (1_000, 200), (1_200, 0),
    ]  # fmt: skip


async def test_a_word_that_chooses_nothing_is_an_error_in_the_program(ada: fairq.Client) -> None:
    with pytest.raises(TypeError, match="colour"):
        await ada.dead_letters("emails").page(colour="red")  # type: ignore[call-arg]
