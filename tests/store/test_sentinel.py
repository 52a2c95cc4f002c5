"""A store whose primary Sentinel names: real sentinels, real stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from fairq.errors import SettingsError
from fairq.store import sentinel as module
from fairq.store.address import parse_seeds
from fairq.store.opening import open_store
from fairq.store.sentinel import Primary, locate
from fairq.store.topology import read_topology
from tests import stores
from tests.sentinels import NAME, StartSentinel, start_sentinel, url_of

from .cases import case, raises_for
from .waiting import wait_until

__all__ = ["start_sentinel"]

CALLS_AND_MESSAGES = 2  # connections of a server
StartStore = Callable[..., stores.LocalServer]


async def test_the_newest_configuration_names_the_primary(start_sentinel: StartSentinel) -> None:
    old, new = stores.free_port(), stores.free_port()
    cut_off = start_sentinel(old, epoch=1)
    others = [start_sentinel(new, epoch=2) for _ in range(2)]
    for asked, primary in [
        ([cut_off], old),
        ([cut_off, others[0]], new),
        ([cut_off, *others], new),
        (others, new),
    ]:
        with case([each.port for each in asked]), trio.fail_after(30):
            found = await locate(parse_seeds(url_of(asked))[0])
            assert found.port == primary


async def test_only_most_of_the_sentinels_lead_back_to_an_older_configuration(start_sentinel: StartSentinel) -> None:
    old, new = stores.free_port(), stores.free_port()
    cut_off, silent, other = start_sentinel(old, epoch=1), start_sentinel(new, epoch=2), start_sentinel(new, epoch=2)
    address = parse_seeds(url_of([cut_off, silent, other]))[0]
    with trio.fail_after(30):
        known = await locate(address)
        silent.stop()
        other.stop()
        assert (await locate(address)).port == old
        assert await locate(address, known) == known
        assert (await locate(parse_seeds(url_of([cut_off]))[0], known)).port == old


async def test_a_server_follows_a_primary_that_has_moved_though_the_old_one_still_answers(
    start_store: StartStore, start_sentinel: StartSentinel
) -> None:
    old, new = start_store(), start_store()
    watching = start_sentinel(old.port)
    heard: list[str] = []
    with trio.fail_after(60):
        url = url_of([watching])
        async with open_store(url, on_message=lambda channel, _: heard.append(channel), connect_timeout=30) as store:
            await store.set_paused("before", "", True)
            await wait_until(lambda: heard.count("") >= 1)
            watching.watch(new.port)
            await wait_until(lambda: heard.count("") >= 2)
            await store.connection.wait_connected()
            await wait_until(lambda: connections(new) == CALLS_AND_MESSAGES)
            await store.set_paused("after", "", True)
            assert await store.queues() == ["after"]
            assert connections(old) == 0
        assert [each.port for each in (await read_topology(url)).primaries] == [new.port]


def connections(store: stores.LocalServer) -> int:
    """Count the servers' connections to a store."""
    with stores.connect(store.url) as client:
        return sum(each["user"] == "fairq" for each in client.client_list())


async def test_while_no_sentinel_answers_a_server_stays_with_its_primary(
    start_store: StartStore, start_sentinel: StartSentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    async def look(*args: Any) -> Primary:
        nonlocal looks
        looks += 1
        return await locate(*args)

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "locate", look)
    primary = start_store()
    watching = start_sentinel(primary.port)
    with trio.fail_after(60):
        async with open_store(url_of([watching]), connect_timeout=30) as store:
            watching.stop()
            await wait_until(lambda: looks > 20)
            assert store.connection.is_connected
            await store.set_paused("emails", "", True)


async def test_what_is_wrong_with_sentinels_is_said_at_once(
    start_store: StartStore, start_sentinel: StartSentinel
) -> None:
    primary = start_store()
    open_one = start_sentinel(primary.port)
    closed_one = start_sentinel(primary.port, more=("requirepass s3cret",))
    for url, said in [
        (url_of([open_one], rest="/other/0"), "No such master"),
        (url_of([closed_one]), "NOAUTH|DENIED"),
        (url_of([closed_one], rest=f"/{NAME}/0?sentinel_password=wrong"), "WRONGPASS|invalid password"),
    ]:
        with case(url), trio.fail_after(30), pytest.raises(SettingsError, match=said):
            async with open_store(url, connect_timeout=3600):
                pass
    with trio.fail_after(30):
        password = f"/{NAME}/3?sentinel_password=s3cret"
        for asked in ([closed_one], [open_one, closed_one]):
            url = url_of(asked, rest=password) if asked == [closed_one] else url_of(asked)
            async with open_store(url, connect_timeout=30) as store:
                await store.set_paused("emails", "", True)
        with stores.connect(primary.url) as client:
            assert [client.info("keyspace")[f"db{number}"]["keys"] > 0 for number in (0, 3)] == [True, True]


def test_a_url_names_the_sentinels_and_the_login_of_the_nodes() -> None:
    url = "rediss+sentinel://ada:p%40ss@one,two:7001,[::1]:7002/shop/2?sentinel_username=eve&sentinel_password=s%2F1"
    (address,) = parse_seeds(url)
    assert (address.username, address.password, address.database, address.name) == ("ada", "p@ss", 2, "shop")
    assert address.place == "shop"
    assert address.shown == "rediss+sentinel://ada:***@one,two:7001,[::1]:7002/shop/2"
    assert [(each.host, each.port, each.username, each.password) for each in address.sentinels] == [
        (host, port, "eve", "s/1") for host, port in (("one", 26_379), ("two", 7001), ("::1", 7002))
    ]
    assert {each.tls for each in address.sentinels} == {address.tls} != {None}
    assert "p@ss" not in repr(address)
    assert "s/1" not in repr(address)


def test_a_url_without_a_name_or_a_host_is_refused() -> None:
    for url in ["redis+sentinel://one:1", "redis+sentinel://one:1/", "redis+sentinel:///shop", "http+sentinel://a/b",
                "redis+sentinel://one:x/shop", "redis+sentinel://,/shop",
                "unix+sentinel://one/shop"]:  # fmt: skip
        with case(url), raises_for("store", SettingsError):
            parse_seeds(url)
