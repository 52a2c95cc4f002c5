"""How fair the pick is, in figures: service lag, worker-seconds, quiet tenants, live weights.

Service lag of a tenant = what its weight entitles it to of all that was dispatched while it was backlogged, minus what
it got (FIELD.md section 5); with one task costing one, it is counted in tasks.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
import redis

from fairq.store import library

from .calls import HEAD, START, Queue, random_values

TENANTS = 300
MAX_LAG, MEAN_LAG = 8, 1


class Backlog:
    """Tenants that are never without ready tasks, each task acknowledged as soon as it is claimed."""

    def __init__(self, queue: Queue, weights: list[int], depth: int) -> None:
        self.queue = queue
        self.weights = {f"t{n}": weight for n, weight in enumerate(weights)}
        self.left = Counter[str]()
        self.served = Counter[str]()
        self.numbers = itertools.count()
        self.depth = depth
        queue.configure(share=1)
        with queue.client.pipeline(transaction=False) as pipeline:
            for name, weight in self.weights.items():
                fcall(pipeline, queue, "set_weight", name, weight * 1000)
            self.refill(pipeline)

    def refill(self, pipeline: redis.client.Pipeline) -> None:
        """Top up tenants that are down to half, in one pipeline."""
        for name in self.weights:
            if self.left[name] <= self.depth / 2:
                ids = [part for _ in range(self.depth) for part in (f"{name}-{next(self.numbers)}", "", "")]
                fcall(pipeline, self.queue, "enqueue", name, *ids)
                self.left[name] += self.depth
        pipeline.execute()

    def serve(self, count: int, batch: int) -> None:
        """Dispatch `count` tasks in batches."""
        until = self.served.total() + count
        with self.queue.client.pipeline(transaction=False) as pipeline:
            while self.served.total() < until:
                for _ in range(max(1, min(1000, until - self.served.total()) // batch)):
                    rolled = random_values(next(self.numbers), 20 * batch + 200)
                    fcall(pipeline, self.queue, "claim", "w1", batch, rolled=rolled)
                names = Counter(
                    id.decode().split("-")[0]
                    for reply in pipeline.execute(raise_on_error=True)
                    for id in reply[HEAD::4]
                )
                self.served += names
                self.left -= names
                self.refill(pipeline)

    def lags(self) -> list[float]:
        """How many tasks each tenant is behind (or ahead of) its entitlement."""
        whole, weights = self.served.total(), sum(self.weights.values())
        return [abs(whole * weight / weights - self.served[name]) for name, weight in self.weights.items()]

    def assert_fair(self) -> None:
        """Hold the lag to the figures of DESIGN.md section 9."""
        lags = self.lags()
        assert max(lags) <= MAX_LAG, f"max lag {max(lags):.1f}"
        assert sum(lags) / len(lags) <= MEAN_LAG, f"mean lag {sum(lags) / len(lags):.2f}"


def fcall(pipeline: redis.client.Pipeline, queue: Queue, verb: str, *args: object, rolled: bytes = b"") -> None:
    pipeline.fcall(library.function_name(verb), 1, queue.prefix, START, rolled, *args)


def weights(count: int) -> list[int]:
    """Draw so many weights, 1 to 10."""
    source = random.Random(7)
    return [source.randint(1, 10) for _ in range(count)]


@pytest.mark.parametrize(("depth", "count", "batch"), [(20, 6_000, 100), (10, 1_000, 1)])
def test_lag_stays_within_bounds(queue: Queue, depth: int, count: int, batch: int) -> None:
    backlog = Backlog(queue, weights(TENANTS), depth)
    backlog.serve(count, batch)
    backlog.assert_fair()


@pytest.mark.deep("fairness")
@pytest.mark.timeout(600)
def test_lag_of_a_thousand_does_not_grow(queue: Queue) -> None:
    backlog = Backlog(queue, weights(1000), 40)
    for _ in range(5):
        backlog.serve(20_000, batch=100)
        backlog.assert_fair()


def test_a_quiet_tenant_is_among_the_next_dispatches(queue: Queue) -> None:
    """A tenant that asks for less than its share waits for nobody: one task per round of the others."""
    backlog = Backlog(queue, [1] * TENANTS, 6)
    for turn in range(4):
        backlog.serve(400, batch=100)
        queue.enqueue("quiet", f"quiet-{turn}")
        assert f"quiet-{turn}" in [lease.id for _ in range(8) for lease in queue.claim(1)]


def test_a_new_weight_acts_on_the_backlog_at_once(queue: Queue) -> None:
    backlog = Backlog(queue, [1] * 100, 200)
    backlog.serve(1000, batch=100)
    queue.call("set_weight", "t0", 10_000)
    before = backlog.served["t0"]
    backlog.serve(600, batch=100)
    assert abs(backlog.served["t0"] - before - 600 * 10 / 109) <= 6


def test_quiet_tenants_do_not_wait_until_a_backlog_has_caught_up(queue: Queue) -> None:
    """Long tasks are charged when they end: the clock leaps, and all who have a backlog are behind it for a while."""
    queue.enqueue("long", *(f"long-{n}" for n in range(10)))
    long = queue.claim(10)
    for name in ("ada", "bob", "cyd"):
        queue.enqueue(name, *(f"{name}-{n}" for n in range(300)))
        for lease in queue.claim(20):  # ends their time on the wake list, and tells how short their tasks are
            queue.advance(1)
            queue.end("ack", lease)
    queue.advance(2_000)
    for lease in long:
        queue.end("ack", lease)
    queue.enqueue("quiet", *(f"quiet-{n}" for n in range(3)))
    first = [lease.id.partition("-")[0] for lease in queue.claim(12)]
    assert "quiet" in first
    assert Counter(first).total() - first.count("quiet") >= 4  # nor does the backlog wait
