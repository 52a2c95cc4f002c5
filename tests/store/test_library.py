"""The function library: its text and version, and how it gets onto a store."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
import trio

import fairq
from fairq.errors import SettingsError, StoreRefused
from fairq.model import NewTask
from fairq.store import library
from fairq.store.opening import open_store
from fairq.store.store import Store, load_library
from tests import stores

TASK = NewTask("id-1", b"1")
VERBS = {
    "enqueue", "claim", "settle", "tick", "set_weight", "pause", "resume", "configure", "replay", "purge", "depth",
    "tenants", "tasks", "dead", "letter", "cancel", "reschedule", "peek", "batches",
    "results", "events", "set_limits", "limits", "set_windows", "windows", "open_batch", "close_batch", "cancel_batch",
    "schedule", "unschedule", "pause_schedule",
    "resume_schedule", "fire", "schedules", "why",
}  # fmt: skip


@pytest.fixture
def bare_url(store_url: str) -> str:
    """The URL of an empty store without functions."""
    client = stores.connect(store_url)
    client.function_flush()
    client.close()
    return store_url


def libraries(url: str) -> dict[str, str]:
    """Read the function libraries of a store: name -> text."""
    client = stores.connect(url, decode_responses=True)
    found = client.execute_command("FUNCTION", "LIST", "WITHCODE")
    client.close()
    rows = [row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True)) for row in found]
    return {row["library_name"]: row["library_code"] for row in rows}


def test_the_library_text_changes_only_together_with_its_version() -> None:
    assert library.digest() == library.DIGEST, (
        "a section of lua/ changed: raise VERSION if that version was ever released, "
        "and set DIGEST to what `python -m fairq.store.library` prints"
    )


def test_the_source_joins_the_numbered_sections_in_order() -> None:
    source = library.source()
    sections = sorted((Path(fairq.__file__).parent / "lua").glob("*.lua"))
    assert [section.name[:2] for section in sections] == sorted({section.name[:2] for section in sections})
    assert source.startswith(f"#!lua name={library.NAME}\nlocal VERSION = {library.VERSION}\n")
    places = [source.index(section.read_text()) for section in sections]
    assert places == sorted(places)


def test_names_carry_the_version() -> None:
    assert f"fairq_{library.VERSION}" == library.NAME
    assert library.function_name("claim") == f"fq{library.VERSION}_claim"


async def test_an_empty_store_gets_the_library(bare_url: str) -> None:
    with trio.fail_after(30):
        async with open_store(bare_url, connect_timeout=30) as store:
            assert await store.enqueue("q", "a", [TASK]) == ["ok"]
    assert libraries(bare_url) == {library.NAME: library.source()}


async def test_every_verb_is_registered_and_reads_are_marked(bare_url: str) -> None:
    with trio.fail_after(30):
        async with open_store(bare_url, connect_timeout=30):
            pass
    client = stores.connect(bare_url, decode_responses=True)
    (found,) = client.execute_command("FUNCTION", "LIST")
    client.close()
    fields = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
    functions = {}
    for row in fields["functions"]:
        function = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
        functions[function["name"]] = set(function["flags"])
    assert set(functions) == {library.function_name(verb) for verb in VERBS}
    reads = {name for name, flags in functions.items() if "no-writes" in flags}
    assert reads == {library.function_name(verb) for verb in library.READ_VERBS}


async def test_a_flushed_library_is_loaded_again_and_no_call_is_lost(store: Store, redis_client: redis.Redis) -> None:
    outcomes: list[list[str]] = []

    async def enqueue(number: int) -> None:
        outcomes.append(list(await store.enqueue("q", "a", [NewTask(f"id-{number}", b"1")])))

    with trio.fail_after(30):
        for start in (0, 100):
            redis_client.function_flush()
            async with trio.open_nursery() as nursery:
                for number in range(start, start + 20):
                    nursery.start_soon(enqueue, number)
        assert outcomes == [["ok"]] * 40
        redis_client.function_flush()
        assert (await store.queue("q")).ready == 40


async def test_many_servers_may_start_on_one_empty_store_at_once(bare_url: str) -> None:
    ready = trio.Event()
    started = 0

    async def start() -> None:
        nonlocal started
        async with open_store(bare_url, connect_timeout=30) as store:
            assert await store.queues() == []
            started += 1
            if started == 5:
                ready.set()
            await ready.wait()

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(start)
    assert libraries(bare_url) == {library.NAME: library.source()}


async def test_two_loaders_that_both_found_nothing_do_not_fail() -> None:
    loaded: list[object] = []

    async def ask(*command: str) -> object:
        if command[1] == "LIST":
            return [[b"library_name", b"x", b"library_code", library.source().encode()]] if loaded else []
        loaded.append(command)
        raise StoreRefused(f"the store refused: ERR Library '{library.NAME}' already exists")

    await load_library(ask)
    assert len(loaded) == 1


async def test_another_text_under_our_version_is_refused_and_left_alone(bare_url: str) -> None:
    client = stores.connect(bare_url)
    other = library.source() + "\n-- another build\n"
    client.function_load(other)
    try:
        with trio.fail_after(30), pytest.raises(SettingsError, match="another text"):
            async with open_store(bare_url, connect_timeout=30):
                pass
        assert libraries(bare_url) == {library.NAME: other}
    finally:
        client.function_flush()
        client.close()


async def test_a_library_of_another_version_stays_beside_ours(bare_url: str) -> None:
    client = stores.connect(bare_url)
    client.function_load("#!lua name=fairq_0\nredis.register_function('fq0_claim', function() return 1 end)")
    with trio.fail_after(30):
        async with open_store(bare_url, connect_timeout=30) as store:
            assert await store.enqueue("q", "a", [TASK]) == ["ok"]
    assert client.fcall("fq0_claim", 0) == 1
    client.function_flush()
    client.close()
