"""A queue with partitions answers as one without, and any server as any other.

A script of requests (alike.py) is carried out on both queues. The answers are compared, and so are the metrics and the
dashboard's pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

import pytest
from attrs import define, field

from fairq.server.engine.net import worker_registry
from fairq.server.engine.stats import recorder
from fairq.store.partitions import place_in, places_of
from fairq.wire import messages
from tests import clusters
from tests.server.web.dashboard.harness import Site, text_of, visited

from .alike import (
    PARTED,
    QUEUES,
    TENANTS,
    TOKENS,
    WHOLE,
    Both,
    change,
    delete,
    fill,
    look,
    plain,
    run,
    schedule,
    set_up,
    tidy,
)
from .harness import lose, raw, running

PARTITIONS = 4


@pytest.mark.parametrize(("partitions", "servers"), [(PARTITIONS, 1), (1, 2)])
async def test_partitions_and_servers_make_no_difference(
    server_store: str, monkeypatch: pytest.MonkeyPatch, partitions: int, servers: int
) -> None:
    """`servers`: what is asked about the queue goes to each of so many servers in turn; its worker is at the last."""
    await check_alike(server_store, monkeypatch, partitions, servers)


async def test_a_cluster_makes_no_difference(
    start_cluster: Callable[..., clusters.Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    await check_alike(start_cluster().url, monkeypatch, PARTITIONS, 2)


async def check_alike(store: str, monkeypatch: pytest.MonkeyPatch, partitions: int, servers: int) -> None:
    monkeypatch.setattr(recorder, "INTERVAL_S", 3600.0)  # the history gets counts when the test says so
    monkeypatch.setattr(worker_registry, "_WRITE_S", 3600.0)  # servers hear of slots that change
    places = places_of(PARTED, PARTITIONS)
    assert {place_in(places, each) for each in TENANTS} == set(places)
    async with visited(store) as site, AsyncExitStack() as stack:
        await site.store.configure(PARTED, {"partitions": partitions})
        both = Both([site.served])
        for _ in range(servers - 1):
            both.servers.append(await stack.enter_async_context(running(store)))
        names = {each.app.name for each in both.servers}
        await both.until(lambda at: at.app.worker_registry.elsewhere.servers() == names - {at.app.name})
        for who, token in TOKENS.items():
            both.clients[who, WHOLE] = [await stack.enter_async_context(raw(site.served, token))]
            mine = both.servers if who != "worker" else both.servers[-1:]
            both.clients[who, PARTED] = [await stack.enter_async_context(raw(each, token)) for each in mine]
        await set_up(both)
        await fill(both)
        await look(both)
        await change(both)
        await schedule(both)
        await run(both)
        for each in both.servers:
            await each.app.recorder.flush()
        await look(both)
        await tidy(both)
        await look_at_pages(both, site)
        await delete(both)
        assert both.asked >= {each.type for each in messages.OfQueue.__subclasses__()}


async def look_at_pages(both: Both, site: Site) -> None:
    page = (await site.browser.get("/metrics")).text
    samples = {queue: [line for line in page.splitlines() if f'"{queue}"' in line] for queue in QUEUES}
    timed = re.compile("_seconds|_share|_service|jain")
    said = {
        queue: [re.sub(r" \S+$", "", each) if timed.search(each) else each for each in samples[queue]]
        for queue in QUEUES
    }
    assert said[WHOLE]
    if len(both.servers) == 1:  # each server has counts of its own
        both.compare("/metrics", *said.values())
    lists = ("dead", "batches", "tenants", "delayed", "schedules", "attempts")
    of_queue = ("", "/tenants/t1", "/tasks/t0/t0-a")
    for path in [f"/{each}?queue={{}}" for each in lists] + [f"/queues/{{}}{each}" for each in of_queue]:
        texts = [text_of(await site.read(path.format(queue))) for queue in QUEUES]
        both.compare(path, *(re.sub(r"[\d.,:]+|\bm?s\b", "", text).split() for text in texts))


@define(eq=False)
class Again(Both):
    """Asks the queue with partitions before one of them is away, and then; `differing`: verbs with other answers."""

    whole: dict[str, Any] = field(factory=dict)
    differing: set[str] = field(factory=set)

    async def ask(self, who: str, verb: str, /, own: Callable[[str], Any] = lambda _: {}, **body: Any) -> Any:
        """Send a request; the second time it must have the same answer, or name what is away, or be refused so."""
        self.asked.add(verb)
        answer = await self.answer(who, verb, PARTED, body | own(PARTED))
        self.compare_again(verb, (who, body), answer)
        return answer

    async def read_pages(self, verb: str) -> None:
        """Read a list two rows at a time."""
        self.compare_again(verb, "by pages", await self.pages(verb, PARTED))

    def compare_again(self, verb: str, body: object, answer: dict[str, Any]) -> None:
        """Compare an answer with the one before: another one must name what is away, or be a refusal for that."""
        before = self.whole.setdefault(f"{verb} {body}", answer)
        if plain(answer) != plain(before):
            self.differing.add(verb)
            says_so = answer.get("refused", "").startswith("unavailable") or '"away": [{' in json.dumps(answer)
            assert says_so, f"{verb} {body}:\n{json.dumps(plain(before))}\n{json.dumps(plain(answer))}"


async def test_no_part_is_passed_off_as_the_whole(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "INTERVAL_S", 3600.0)
    async with running(server_store) as served, AsyncExitStack() as stack:
        await served.app.store.configure(PARTED, {"partitions": PARTITIONS})
        both = Both([served])
        for who, queue in product(TOKENS, QUEUES):
            both.clients[who, queue] = [await stack.enter_async_context(raw(served, TOKENS[who]))]
        await set_up(both)
        await fill(both)
        await schedule(both)
        await run(both)
        await served.app.recorder.flush()
        again = Again(both.servers, both.clients)
        await look(again)
        lose(served, monkeypatch, place_in(places_of(PARTED, PARTITIONS), "t0"))
        await look(again)
        unchanged = {"wait_tasks", "webhooks"}  # those of tenants that are there, and what all partitions have alike
        assert again.asked - again.differing == unchanged
