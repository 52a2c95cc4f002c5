"""Settings: defaults < file < environment < flags; an error names the setting and where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from fairq.errors import SettingsError
from fairq.server.settings import Settings, load_settings
from tests.store.cases import case, raises_for


def write(tmp_path: Path, text: str) -> Path:
    """Write a settings file."""
    path = tmp_path / "fairq.toml"
    path.write_text(text)
    return path


def test_nothing_given_means_the_defaults() -> None:
    assert load_settings(None, {}, {}) == Settings()
    assert Settings().port == 7700


def test_the_file_wins_over_defaults_the_environment_over_the_file_flags_over_all(tmp_path: Path) -> None:
    path = write(tmp_path, "port = 1\ngrace = 1.5\nlog_level = 'debug'\n")
    environment = {"FAIRQ_PORT": "2", "FAIRQ_GRACE": "2.5", "FAIRQ_URL": "not a setting", "HOME": "/"}
    settings = load_settings(path, environment, {"port": 3, "grace": None})
    assert (settings.port, settings.grace, settings.log_level) == (3, 2.5, "debug")


def test_every_setting_can_be_given_in_every_way(tmp_path: Path) -> None:
    given: dict[str, tuple[str, Any]] = {
        "host": ("localhost", "localhost"),
        "port": ("8800", 8800),
        "http_host": ("127.0.0.2", "127.0.0.2"),
        "http_port": ("8801", 8801),
        "admin_host": ("127.0.0.2", "127.0.0.2"),
        "admin_port": ("8802", 8802),
        "metrics_host": ("127.0.0.2", "127.0.0.2"),
        "metrics_port": ("8803", 8803),
        "http_cors_origins": ("https://a, https://b", ["https://a", "https://b"]),
        "store": ("redis://x", "redis://x"),
        "data_dir": ("/data", Path("/data")),
        "fsync": ("everysec", "everysec"),
        "store_timeout": ("2.5", 2.5),
        "grace": ("2", 2.0),
        "reconnect_grace": ("1.5", 1.5),
        "wait_replicas": ("2", 2),
        "repair": ("true", True),
        "dev": ("yes", True),
        "unsafe_store": ("true", True),
        "plaintext": ("1", True),
        "origins": ("https://a, https://b", ["https://a", "https://b"]),
        "processes": ("7", 7),
        "max_connections": ("7", 7),
        "connections_per_address": ("7", 7),
        "connections_per_tenant": ("7", 7),
        "requests_per_second": ("7", 7),
        "bytes_per_second": ("70000", 70_000),
        "max_payload_bytes": ("2000000", 2_000_000),
        "queue_quota": ("7", 7),
        "log_level": ("error", "error"),
        "log_json": ("on", True),
        "tls_cert": ("/cert", Path("/cert")),
        "tls_key": ("/key", Path("/key")),
    }
    assert given.keys() == {field.name for field in attrs.fields(Settings)}
    for setting, (text, value) in given.items():
        pair = {"tls_cert": "tls_key", "tls_key": "tls_cert", "wait_replicas": "store"}.get(setting)
        others = {pair: "/other"} if pair else {}
        by_flag = load_settings(None, {}, {setting: text, **others})
        by_environment = load_settings(None, {f"FAIRQ_{setting.upper()}": text}, others)
        by_file = load_settings(write(tmp_path, f'{setting} = "{text}"'), {}, others)
        found = [getattr(each, setting) for each in (by_flag, by_environment, by_file)]
        assert found == [value] * 3, setting


BAD_VALUES: list[tuple[str, str]] = [
    ("port", "many"), ("port", "70000"), ("port", "-1"), ("port", "7700.5"), ("dev", "maybe"), ("dev", "2"),
    ("http_port", "70000"), ("http_port", "7700"), ("http_port", "many"),
    ("admin_port", "70000"), ("admin_port", "7700"), ("admin_port", "many"),
    ("metrics_port", "70000"), ("metrics_port", "7700"), ("metrics_port", "many"),
    ("store_timeout", "0"), ("store_timeout", "nan"), ("grace", "-1"), ("grace", "inf"), ("grace", "nan"),
    ("fsync", "no"), ("max_connections", "0"), ("connections_per_tenant", "0"), ("connections_per_address", "-1"),
    ("requests_per_second", "0"), ("bytes_per_second", "65535"), ("max_payload_bytes", "65535"),
    ("max_payload_bytes", "16777217"), ("max_payload_bytes", "1.5"), ("queue_quota", "-1"),
    ("queue_quota", "1000001"), ("log_level", "loud"),
]  # fmt: skip


def test_a_bad_value_names_the_setting() -> None:
    for name, value in BAD_VALUES:
        for environment, flags in (({f"FAIRQ_{name.upper()}": value}, {}), ({}, {name: value})):
            with case(value), raises_for(name, SettingsError) as caught:
                load_settings(None, environment, flags)
            assert name in caught.value.message.lower().replace("-", "_")


BAD_FILES: list[tuple[str, str]] = [
    ("prot = 1", "prot"),
    ("port = 'many'", "port"),
    ("port = true", "port"),
    ("port = 77.5", "port"),
    ("origins = 5", "origins"),
    ("host = 5", "host"),
    ("[server]\nport = 1", "server"),
    ("port = ", "config"),
    ("port = 1\nport = 2", "config"),
    ("\x00", "config"),
]


def test_a_bad_file_names_the_setting_and_the_file(tmp_path: Path) -> None:
    for text, field in BAD_FILES:
        path = write(tmp_path, text)
        with case(text), raises_for(field, SettingsError) as caught:
            load_settings(path, {}, {})
        assert str(path) in caught.value.message


def test_settings_do_not_show_the_stores_password() -> None:
    assert "hunter2" not in repr(Settings(store="redis://:hunter2@127.0.0.1"))


@pytest.mark.parametrize("kind", ["missing", "directory", "binary"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "fairq.toml"
    if kind == "directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"port = \xff\xfe")
    with raises_for("config", SettingsError) as caught:
        load_settings(path, {}, {})
    assert str(path) in caught.value.message


LOCAL, OTHER = "127.0.0.1", "127.0.0.2"
EVERYWHERE: dict[str, Any] = {"host": "0.0.0.0", "plaintext": True}
Address = tuple[str, int]
LISTENERS: list[tuple[dict[str, Any], Address | None, Address | None, list[Address]]] = [  # HTTP, operators, metrics
    ({}, None, None, []),
    ({"http_port": 0}, (LOCAL, 0), None, []),
    ({"http_host": OTHER}, (OTHER, 7701), None, []),
    ({"host": OTHER, "http_port": 0}, (OTHER, 0), None, []),
    ({"http_host": "0.0.0.0", "plaintext": True}, ("0.0.0.0", 7701), None, []),
    ({"admin_port": 0}, None, (LOCAL, 0), []),
    ({"admin_host": OTHER}, None, (OTHER, 7702), []),
    ({**EVERYWHERE, "admin_port": 0}, None, (LOCAL, 0), []),
    ({"dev": True}, (LOCAL, 7701), (LOCAL, 7702), []),
    ({"dev": True, "port": 0}, (LOCAL, 0), (LOCAL, 0), []),
    ({"dev": True, "port": 7710}, (LOCAL, 0), (LOCAL, 0), []),
    ({"dev": True, "http_port": 8000}, (LOCAL, 8000), (LOCAL, 7702), []),
    ({"dev": True, "admin_port": 9}, (LOCAL, 7701), (LOCAL, 9), []),
    ({"metrics_port": 0}, None, None, [(LOCAL, 0)]),
    ({"metrics_host": OTHER}, None, None, [(OTHER, 7703)]),
    ({"metrics_port": 9, "plaintext": True, "admin_host": "0.0.0.0"}, None, ("0.0.0.0", 7702), [("0.0.0.0", 9)]),
    ({"metrics_host": LOCAL, "plaintext": True, "admin_host": "0.0.0.0"}, None, ("0.0.0.0", 7702), [(LOCAL, 7703)]),
    ({"processes": 3}, None, None, []),
    ({"metrics_port": 0, "processes": 3}, None, None, [(LOCAL, 0)] * 3),
    ({"metrics_port": 7703, "processes": 3}, None, None, [(LOCAL, 7703), (LOCAL, 7704), (LOCAL, 7705)]),
]


def test_each_listener_has_an_address_or_is_off() -> None:
    for given, *wanted in LISTENERS:
        found = load_settings(None, {}, given).with_all_for_dev()
        assert [found.http_address, found.admin_address, found.metrics_addresses] == wanted, given
        assert found.metrics_address == next(iter(found.metrics_addresses), None), given


DO_NOT_GO_TOGETHER: list[tuple[dict[str, Any], str]] = [
    *(
        ({"host": host, "dev": True, "plaintext": True}, "dev")
        for host in ("0.0.0.0", "::", "192.0.2.1", "example.org")
    ),
    *(({name: "0.0.0.0"}, "tls_cert") for name in ("host", "http_host", "admin_host", "metrics_host")),
    *(
        ({name: "0.0.0.0", "dev": True, "plaintext": True}, "dev")
        for name in ("http_host", "admin_host", "metrics_host")
    ),
    *(({name: "file.pem"}, "tls_key") for name in ("tls_cert", "tls_key")),
    ({"http_port": 8000, "admin_port": 8000}, "admin_port"),
    ({"admin_port": 8000, "metrics_port": 8000}, "metrics_port"),
    ({"http_port": 8000, "metrics_port": 8000}, "metrics_port"),
    ({"metrics_port": 7699, "processes": 2}, "metrics_port"),
    ({**EVERYWHERE, "port": 7704, "metrics_port": 7703, "processes": 2}, "metrics_port"),
    ({"metrics_port": 65_534, "processes": 3}, "metrics_port"),
]


def test_settings_that_do_not_go_together_are_refused() -> None:
    """Development tokens are for loopback only; other addresses need TLS; each listener has ports of its own."""
    for given, field in DO_NOT_GO_TOGETHER:
        with pytest.raises(SettingsError) as refusal:
            load_settings(None, {}, given)
        assert refusal.value.field == field, given


def test_loopback_needs_no_tls_and_other_addresses_it_or_a_word_about_it() -> None:
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert load_settings(None, {}, {"host": host, "dev": True}).host == host
    assert load_settings(None, {}, EVERYWHERE).plaintext
    assert load_settings(None, {}, {"host": "0.0.0.0", "tls_cert": "c", "tls_key": "k"}).tls_cert == Path("c")
