"""Where the store is and how to log in: URLs, passwords, ACL users, TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from fairq.errors import SettingsError
from fairq.store.address import Address, node_address, parse_seeds
from fairq.store.opening import open_store
from fairq.store.topology import read_slots
from tests import stores

from .cases import case, raises_for
from .certificates import make_certificate
from .proxy import open_proxy

SECRET = "p@ss:wo/rd#1"
QUOTED = "p%40ss%3Awo%2Frd%231"
RULES = (
    "on", "~fq:*", "&fq:*", "-@all", "+@connection", "+@scripting", "+@pubsub", "+config|get", "+@read", "+@write",
    "+time", "+info",
)  # fmt: skip


@pytest.fixture
def guarded_store(start_store: Callable[..., stores.LocalServer]) -> stores.LocalServer:
    """A store with a password, and with a user that may do what fairq needs."""
    server = start_store()
    client = stores.connect(server.url)
    client.execute_command("ACL", "SETUSER", "fairq", f">{SECRET}", *RULES)
    client.config_set("requirepass", SECRET)
    client.close()
    return server


async def test_a_password_or_an_acl_user_logs_in(guarded_store: stores.LocalServer) -> None:
    for login in [f":{QUOTED}@", f"default:{QUOTED}@", f"fairq:{QUOTED}@"]:
        with case(login):
            with trio.fail_after(30):
                async with open_store(f"redis://{login}127.0.0.1:{guarded_store.port}/0", connect_timeout=30) as store:
                    assert await store.queues() == []


async def test_what_the_user_may_not_run_is_named_at_once(guarded_store: stores.LocalServer) -> None:
    client = stores.connect(guarded_store.url, password=SECRET)
    client.execute_command("ACL", "SETUSER", "fairq", "-time", "-zadd", "-spublish")
    client.close()
    with trio.fail_after(30), pytest.raises(SettingsError, match="may not run SPUBLISH, TIME, ZADD on"):
        async with open_store(f"redis://fairq:{QUOTED}@127.0.0.1:{guarded_store.port}/0", connect_timeout=3600):
            pass


async def test_a_wrong_login_is_refused_at_once_and_not_shown(guarded_store: stores.LocalServer) -> None:
    for login in ["", ":wrong@", "fairq:wrong@", f"nobody:{QUOTED}@"]:
        with case(login):
            with trio.fail_after(30), pytest.raises(SettingsError, match="refused") as caught:
                async with open_store(f"redis://{login}127.0.0.1:{guarded_store.port}/0", connect_timeout=3600):
                    pass
            assert "wrong" not in str(caught.value).lower().replace("wrongpass", "")
            assert QUOTED not in str(caught.value)


async def test_the_database_of_the_url_is_used(store_url: str) -> None:
    with trio.fail_after(30):
        async with open_store(store_url.removesuffix("/0") + "/3", connect_timeout=30) as store:
            await store.set_paused("emails", "", True)
        async with open_store(store_url, connect_timeout=30) as store:
            assert await store.queues() == []


async def test_rediss_checks_the_certificate(store_port: int, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*certificate)
    with trio.fail_after(30):
        async with open_proxy(store_port, tls=tls) as proxy:
            url = f"rediss://127.0.0.1:{proxy.port}/0"
            async with open_store(f"{url}?ssl_ca_certs={certificate[0]}", connect_timeout=30) as store:
                assert await store.queues() == []
            for connect_timeout in (0.5, 2, 8):
                with pytest.raises(SettingsError) as caught:
                    async with open_store(url, connect_timeout=connect_timeout):
                        pass
                if "no answer" not in caught.value.message:  # it had the time for one attempt
                    break
    assert caught.value.field == "store"
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.message


def test_a_wrong_url_names_the_setting_and_hides_the_password() -> None:
    for url in [
        "",
        "valkey.example.org", f"http://:{QUOTED}@host", f"redis://:{QUOTED}@host:port",
        f"redis://:{SECRET}@host:6379", "redis://:s3c/ret@host:6379", f"redis://:{QUOTED}@host?socket_timeout=soon",
        f"redis://:{QUOTED}@host/x", f"redis://:{QUOTED}@host/1/2", "redis://host/-1", "rediss://host/ 3",
        "rediss://host?ssl_ca_certs=/nowhere.pem", "rediss://host?ssl_certfile=/nowhere.pem", "unix://",
        "redis://:123?s3c=1@host",
    ]:  # fmt: skip
        with case(url):
            with raises_for("store", SettingsError) as caught:
                Address.parse(url)
            for piece in (SECRET, QUOTED, "p@ss", "p%40ss", "ss:wo", "s3c"):
                assert piece not in caught.value.message


def test_an_option_that_would_be_ignored_is_refused_and_named() -> None:
    for url, name in [
        ("redis://host/0?foo=bar", "foo"), ("redis://host/0?foo", "foo"), ("redis://one,two/0?db=0&Db=1", "Db"),
        ("rediss://host?ssl_cert_reqs=none", "ssl_cert_reqs"), ("redis://host?ssl_ca_certs=ca.pem", "ssl_ca_certs"),
        ("unix:///run/valkey.sock?socket_timeout=soon", "socket_timeout"), ("redis://one?host=two", "host"),
        ("redis://host?sentinel_password=x", "sentinel_password"), ("redis+sentinel://host/shop?foo=bar", "foo"),
    ]:  # fmt: skip
        with case(url), raises_for("store", SettingsError, match=f"no option '{name}'; expected username, password"):
            parse_seeds(url)


def test_an_address_shows_its_url_without_the_password() -> None:
    for url, shown in [
        ("redis://localhost:6379/2", "redis://localhost:6379/2"),
        (f"redis://:{QUOTED}@localhost:6379/2", "redis://:***@localhost:6379/2"),
        (f"redis://ada:{QUOTED}@localhost", "redis://ada:***@localhost"),
        ("redis://host:host@host:1", "redis://host:***@host:1"),
        (f"redis://localhost?password={QUOTED}", "redis://localhost"),
        (f"unix:///run/valkey.sock?password={QUOTED}&db=1", "unix:///run/valkey.sock"),
    ]:
        with case(url, shown):
            address = Address.parse(url)
            assert address.shown == shown
            assert SECRET not in repr(address)
            assert "password" not in repr(address)


def test_a_url_may_name_several_seeds_with_one_login() -> None:
    seeds = parse_seeds(f"redis://ada:{QUOTED}@one:7000,two:7001,three/0?db=0")
    assert [(seed.host, seed.port) for seed in seeds] == [("one", 7000), ("two", 7001), ("three", 6379)]
    assert {(seed.username, seed.password, seed.database) for seed in seeds} == {("ada", SECRET, 0)}
    assert [seed.shown for seed in seeds] == [f"redis://ada:***@{host}/0" for host in ("one:7000", "two:7001", "three")]


def test_a_url_with_one_host_is_one_seed() -> None:
    for url in ["redis://localhost:6379/2", "unix:///run/a,b.sock", "redis://:a,b@localhost"]:
        with case(url):
            assert parse_seeds(url) == [Address.parse(url)]


def test_a_node_is_reached_as_its_seed_is() -> None:
    seed = Address.parse(f"redis://ada:{QUOTED}@one:7000/0")
    node = node_address(seed, "::1", 7002)
    assert (node.host, node.port, node.username, node.password) == ("::1", 7002, "ada", SECRET)
    assert (node.shown, node.tls) == ("redis://[::1]:7002", None)
    seed = Address.parse("rediss://one:7000/0")
    node = node_address(seed, "two", 7002)
    assert node.shown == "rediss://two:7002"
    assert node.tls is seed.tls is not None


def test_slots_of_a_node_that_does_not_know_its_own_name_are_where_it_was_asked() -> None:
    reply = [[0, 99, [b"", 7000, b"id", []], [b"10.0.0.9", 7009, b"id", []]], [100, 199, [b"10.0.0.2", 7001, b"id"]]]
    found = [(part.first, part.last, part.host, part.port) for part in read_slots(reply, "10.0.0.1")]
    assert found == [(0, 99, "10.0.0.1", 7000), (100, 199, "10.0.0.2", 7001)]
