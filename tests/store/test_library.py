"""The function library: its text and version, and how it gets onto a store."""

from __future__ import annotations

import hashlib

import pytest
import redis
import trio

from fairq.errors import SettingsError, StoreRefused
from fairq.model.tasks import NewTask
from fairq.store import keys, library
from fairq.store.calls import load_library
from fairq.store.migrations import NEW, READABLE
from fairq.store.opening import open_store
from fairq.store.store import Store
from tests import stores

TASK = NewTask("id-1", b"1")


@pytest.fixture
def bare_url(store_url: str) -> str:
    """The URL of an empty store without functions."""
    client = stores.connect(store_url)
    client.function_flush()
    client.close()
    return store_url


def test_the_source_joins_the_sections_in_order() -> None:
    source = library.source()
    first = ["prelude", "formats"]
    names = first + [name for name in library.sections() if name not in first]
    assert source.startswith(f"#!lua name={library.name()}\nlocal VERSION = '{library.version()}'\n")
    texts = [library.sections()[name].partition("\n\n")[0] for name in names]  # formats and keys are written out
    places = [source.index(text) for text in texts]
    assert places == sorted(places)


def test_every_format_is_a_table_with_what_it_packs() -> None:
    form = library.formats()["DEATH"]
    assert [field.name for field in form.fields][:3] == ["reason", "attempts", "lease"]
    assert form.fields[-1] == ("traceback", "rest")
    assert (form.code, form.size) == ("<BIddBc0Hc0Bc0", 25)
    assert "  return struct.pack('<BIddBc0Hc0Bc0', r.reason, " in library.source()
    assert "--:" not in library.source().partition("-- ")[0]


def test_names_carry_the_version_which_is_a_hash_of_the_text() -> None:
    text = library.source().split("\n", 3)[3]
    assert hashlib.sha256(text.encode()).hexdigest().startswith(library.version())
    assert f"fairq_{library.version()}" == library.name()
    assert library.function_name("claim") == f"fq_{library.version()}_claim"


@pytest.mark.parametrize("found", ["2", str(library.DATA_VERSION + 1), f"{library.DATA_VERSION}>99", "2 or more"])
async def test_a_store_with_data_of_another_version_is_refused_in_one_line(bare_url: str, found: str) -> None:
    client = stores.connect(bare_url)
    client.set(keys.DATA_VERSION, found)
    expected = f"data of version {found}.*this fairq reads {READABLE}: use the fairq that wrote it"
    with trio.fail_after(30), pytest.raises(SettingsError, match=expected):
        async with open_store(bare_url, connect_timeout=30):
            pass
    assert client.get(keys.DATA_VERSION) == found.encode()
    assert not client.function_list(), "no library was loaded"
    client.close()


async def test_a_store_is_marked_with_the_version_of_its_data_and_opened_again(bare_url: str) -> None:
    for _ in range(2):
        with trio.fail_after(30):
            async with open_store(bare_url, connect_timeout=30) as store:
                await store.enqueue("q", "a", [TASK])
    client = stores.connect(bare_url)
    assert client.get(keys.DATA_VERSION) == str(NEW).encode()
    client.close()


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


async def test_two_loaders_that_both_found_nothing_do_not_fail() -> None:
    loaded: list[object] = []

    async def ask(*command: str) -> object:
        if command[1] == "LIST":
            return []
        loaded.append(command)
        raise StoreRefused(f"the store refused: ERR Library '{library.name()}' already exists")

    await load_library(ask)
    assert len(loaded) == 1


async def test_a_library_of_another_version_stays_beside_ours(bare_url: str) -> None:
    client = stores.connect(bare_url)
    client.function_load("#!lua name=fairq_0\nredis.register_function('fq0_claim', function() return 1 end)")
    with trio.fail_after(30):
        async with open_store(bare_url, connect_timeout=30) as store:
            assert await store.enqueue("q", "a", [TASK]) == ["ok"]
    assert client.fcall("fq0_claim", 0) == 1
    client.function_flush()
    client.close()
