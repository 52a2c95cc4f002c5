"""The search for planted bugs: `python -m tests.lua.planted` finds anew those that are not at their place any more.

A walk is recorded once by the real library: what it asks, and digests of the replies and, now and then, of all keys. A
mutant is asked the same, all at once; where a digest differs, the walk itself is taken, and compares all from there on.
The first round takes short walks, later ones take longer ones: a low step makes a quick replay. mutants.diff is written
as often as something is found.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import redis
from redis.client import Pipeline

from tests import stores

from .mutants import MUTANTS, Mutant, write_places
from .walks import KINDS, Place, begin, first_difference, is_found, load

ROUNDS = [(40, 8, 30), (400, 4, 300)]  # seeds, how many of them at once, and the steps of their walks
PROCESSES, PART = 2, 20  # and how many mutants one of them searches for at once
VAIN = 2  # walks that only seem to find a mutant, of a bunch
SHORT = 30  # of longer walks the first one that finds a mutant will do
KEPT = ("FCALL", "FCALL_RO", "SET", "DEL", "ZADD", "COPY", "FLUSHALL")  # what a recording keeps of a walk
SETTINGS = {"enable-debug-command": "local", "appendonly": "no"}  # of the stores
DIGEST, DIGEST_STEPS = ("DEBUG", "DIGEST"), 10  # of all keys; after every so many steps


class RecordedPipeline(Pipeline):
    """A pipeline that notes what it asks."""

    asked: list[tuple[Any, ...]]

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        self.asked += [args for args, _ in self.command_stack]
        return super().execute(raise_on_error)


class Recorder(redis.Redis):
    """A client that notes what it asks."""

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(connection_pool=client.connection_pool)
        self.asked: list[tuple[Any, ...]] = []

    def execute_command(self, *args: Any, **options: Any) -> Any:
        self.asked.append(args)
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def take(self, *more: tuple[Any, ...]) -> Asked:
        """Take the calls since the last time, and more."""
        asked = [*(args for args in self.asked if args[0] in KEPT), *more]
        self.asked.clear()
        connection = self.connection_pool.get_connection()
        try:
            return Asked(b"".join(connection.pack_commands(asked)), len(asked))
        finally:
            self.connection_pool.release(connection)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Make a pipeline that notes, too."""
        pipeline = RecordedPipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        pipeline.asked = self.asked
        return pipeline


class Asked(NamedTuple):
    """What a step asks: commands as they are sent, and how many."""

    packed: bytes
    replies: int


class Recording(NamedTuple):
    """The calls of a walk at its beginning and in each of its steps, and digests of the replies."""

    kind: str
    seed: int
    asked: list[Asked]
    answers: list[bytes]


def record(client: redis.Redis, kind: str, seed: int, steps: int) -> Recording:
    """Take a walk by the real library; all that is compared after a step is read once, after the last."""
    recorder = Recorder(client)
    walk = begin(recorder, kind, seed)
    walk.compares = False
    asked = [recorder.take(DIGEST)]
    for step in range(1, steps + 1):
        walk.step()
        if step == steps:
            walk.compares = True
            walk.compare()
        asked.append(recorder.take(*[DIGEST] * (step % DIGEST_STEPS == 0 or step == steps)))
    return Recording(kind, seed, asked, play(client, asked))


def play(client: redis.Redis, asked: list[Asked]) -> list[bytes]:
    """Ask what a walk asks, all at once; returns a digest of the replies to each step."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_packed_command([b"".join(step.packed for step in asked)])
        seen = []
        for step in asked:
            replies = repr([read(connection) for _ in range(step.replies)])
            seen.append(hashlib.blake2b(replies.encode(), digest_size=8).digest())
        return seen
    finally:
        client.connection_pool.release(connection)


def read(connection: Any) -> Any:
    """Read a reply, be it an error."""
    try:
        return connection.read_response()
    except redis.ResponseError as error:
        return error


def find(client: redis.Redis, mutant: Mutant, recordings: list[Recording], steps: int) -> Place | None:
    """Find a planted bug as early as any of these walks does."""
    for seed in (0, 1):
        load(client, seed, mutant.change)
    found, vain = None, 0
    for kind, seed, asked, shown in recordings:
        if vain == VAIN or (found and (found.step <= 1 or steps > SHORT)):
            break
        most = found.step - 1 if found else steps
        heard = play(client, asked[: most + 1])
        first = next((step for step, digest in enumerate(heard) if digest != shown[step]), None)
        if first is None:
            continue
        compared = range(max(0, first - DIGEST_STEPS), most + 1, 1 + steps // 40)
        if place := first_difference(client, kind, seed, compared):
            found = place
        else:
            vain += 1
    return found


def suspects(
    client: redis.Redis, mutants: list[Mutant], recordings: list[Recording]
) -> Iterator[tuple[Mutant, list[Recording]]]:
    """Tell which walks may find which mutants: where many together change nothing, none of them does."""
    try:
        for seed in (0, 1):
            load(client, seed, *(mutant.change for mutant in mutants))
    except AssertionError:  # two of them change the same text
        differing = recordings
    else:
        differing = [each for each in recordings if play(client, each.asked) != each.answers]
    if len(mutants) == 1 and differing:
        yield mutants[0], differing
    elif differing:
        half = len(mutants) // 2
        yield from suspects(client, mutants[:half], differing)
        yield from suspects(client, mutants[half:], differing)


CLIENTS: list[redis.Redis] = []  # of this process


def connect(urls: multiprocessing.SimpleQueue[str]) -> None:
    """Let a process of the pool have a store of its own; it is the main process that is interrupted."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    CLIENTS.append(stores.connect(urls.get()))


def kinds_of(seed: int) -> list[str]:
    """Choose the kinds of walks that are taken from a seed: the usual one, and most often another."""
    other = seed // 2 % len(KINDS)
    return list(KINDS)[: other + 1 : max(1, other)]


@lru_cache(maxsize=1)
def recordings_of(seeds: range, steps: int) -> list[Recording]:
    """Record walks from these seeds."""
    for seed in (0, 1):
        load(CLIENTS[0], seed)
    return [record(CLIENTS[0], kind, seed, steps) for seed in seeds for kind in kinds_of(seed)]


def search(mutants: list[Mutant], seeds: range, steps: int) -> dict[str, Place]:
    """Search for mutants in walks from these seeds."""
    recordings = recordings_of(seeds, steps)
    chosen = suspects(CLIENTS[0], mutants, recordings) if steps > SHORT else ((each, recordings) for each in mutants)
    found = {mutant.name: find(CLIENTS[0], mutant, some, steps) for mutant, some in chosen}
    return {name: place for name, place in found.items() if place}


def check(mutant: Mutant, place: Place) -> bool:
    """Tell whether a mutant is found at its place still."""
    return is_found(CLIENTS[0], mutant.change, place)


def bunches() -> Iterator[tuple[range, int]]:
    """Name the seeds of walks that are recorded at once, and their steps."""
    for seeds, bunch, steps in ROUNDS:
        for first in range(0, seeds, bunch):
            yield range(first, first + bunch), steps


def run(pool: Any, searches_all: bool) -> dict[str, Place]:
    """Check the places that are known, then search for the rest, or for all; returns all places."""
    began = time.monotonic()
    at_place = [(mutant, mutant.place) for mutant in MUTANTS if mutant.place]
    checked = pool.starmap(check, at_place)
    places = {mutant.name: place for (mutant, place), is_found in zip(at_place, checked, strict=True) if is_found}
    print(f"{len(places)} of {len(MUTANTS)} are found at their places", flush=True)
    write_places(places)
    done = set() if searches_all else set(places)
    for seeds, steps in bunches():
        left = [mutant for mutant in MUTANTS if mutant.name not in done]
        parts = [left[i : i + PART] for i in range(0, len(left), PART)]
        for found in pool.imap_unordered(partial(search, seeds=seeds, steps=steps), parts):
            done |= found.keys()
            places |= {n: p for n, p in found.items() if n not in places or p.step < places[n].step}
            write_places(places)
            shown = f"walks {seeds[0]}-{seeds[-1]} of {steps} steps: {len(done)} found"
            print(f"{time.monotonic() - began:6.0f} s  {shown}", flush=True)
    return places


def main() -> None:
    """Search in two processes, each with a store of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.lua.planted", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--all", action="store_true", help="search also for those that are found: an earlier step is kept"
    )
    searches_all = parser.parse_args().all
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    urls: multiprocessing.SimpleQueue[str] = multiprocessing.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        servers = [stores.LocalServer("valkey", Path(folder) / f"store-{n}", SETTINGS) for n in range(PROCESSES)]
        try:
            for server in servers:
                server.start()
                urls.put(server.url)
            with multiprocessing.Pool(PROCESSES, connect, (urls,)) as pool:
                places = run(pool, searches_all)
        except KeyboardInterrupt:
            sys.exit("stopped; the places found so far are kept")
        finally:
            for server in servers:
                server.stop()
    if missing := [mutant.name for mutant in MUTANTS if mutant.name not in places]:
        sys.exit("\n".join(["not found:", *missing]))


if __name__ == "__main__":
    main()
