"""The files of deploy/: they agree with the code and with each other, and a real store takes its configuration."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import attrs
import pytest
import yaml

from fairq.server.settings import ADMIN_PORT, HTTP_PORT, METRICS_PORT, Settings, load_settings
from fairq.store.embedded import ALLOCATOR
from tests import stores
from tests.cli.harness import read_until, started

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
GIVE_BACK_S = 10  # what stopping may take beyond the grace: leases given back, good-byes, the store's end


def seconds(text: str) -> float:
    """Read a duration as compose and systemd write it: 45s, 1m, 60."""
    number, unit = re.fullmatch(r"(\d+)(s|m|min)?", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * (60 if unit in ("m", "min") else 1)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "fairq.service").read_text())
    return parser


def servers_of(compose: dict[str, Any]) -> list[dict[str, Any]]:
    """Name the services that are fairq servers."""
    return [service for service in compose["services"].values() if service.get("image") == "fairq"]


# compose.yaml


def test_compose_has_two_servers_on_one_store_with_ports_of_their_own_on_loopback(compose: dict[str, Any]) -> None:
    assert len({server["environment"]["FAIRQ_STORE"] for server in servers_of(compose)}) == 1
    for first, server in zip((7700, 7710), servers_of(compose), strict=True):
        assert server["ports"] == [f"127.0.0.1:{first + n}:{7700 + n}" for n in range(3)]


def test_the_settings_of_compose_serve_websockets_http_and_the_dashboard(
    compose: dict[str, Any], start_store: Callable[..., stores.LocalServer], tmp_path: Path
) -> None:
    image = dict(word.split("=", 1) for word in dict(instructions())["ENV"].split())
    for server in servers_of(compose):
        given = {**image, **server["environment"], "FAIRQ_STORE": start_store({}).url}
        given |= {f"FAIRQ_{name}PORT": "0" for name in ("", "HTTP_", "ADMIN_", "METRICS_")}
        given |= {"FAIRQ_DATA_DIR": str(tmp_path)}
        with started("serve", extra={name: each for name, each in given.items() if name != "PATH"}) as process:
            output = json.loads(read_until(process, '"serving"'))
            assert output["url"].startswith("ws://0.0.0.0:")
            for path, kind in (("/readyz", "admin"), ("/openapi.json", "http"), ("/sign-in", "admin")):
                with urlopen(f"http://127.0.0.1:{urlsplit(output[kind]).port}{path}", timeout=20) as answer:
                    assert answer.status == 200


def test_compose_waits_longer_than_the_grace(compose: dict[str, Any]) -> None:
    for server in servers_of(compose):
        assert seconds(server["stop_grace_period"]) >= float(server["environment"]["FAIRQ_GRACE"]) + GIVE_BACK_S
        assert server["stop_signal"] == "SIGTERM"


def test_compose_settings_exist(compose: dict[str, Any]) -> None:
    for server in servers_of(compose):
        environment = server["environment"]
        known = {f"FAIRQ_{setting.name.upper()}" for setting in attrs.fields(Settings)}
        assert environment.keys() <= known
        assert load_settings(None, environment | {"FAIRQ_HOST": "0.0.0.0"}, {}).plaintext


def test_compose_store_is_out_of_reach_from_outside(compose: dict[str, Any]) -> None:
    store = compose["services"]["store"]
    assert "ports" not in store
    assert store["networks"] == ["back"]
    assert compose["networks"]["back"]["internal"]
    options = "--dir /data --aclfile /tmp/users.acl"
    assert f"valkey-server /etc/valkey/valkey.conf {options}" in store["command"][2]
    assert {"store:/data", "./valkey.conf:/etc/valkey/valkey.conf:ro"} <= {*store["volumes"]}
    assert "./redis.acl:/etc/valkey/redis.acl:ro" in store["volumes"]


def test_compose_starts_the_store_with_the_password_as_its_users_hash(compose: dict[str, Any], tmp_path: Path) -> None:
    script = compose["services"]["store"]["command"][2].replace("$$", "$")
    script = script.replace("/tmp/", f"{tmp_path}/").replace(
        "/etc/valkey/redis.acl", shlex.quote(str(DEPLOY / "redis.acl"))
    )
    before_start = script.partition("exec ")[0]
    environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": stores.PASSWORD}
    subprocess.run(["sh", "-ec", before_start], env=environment, check=True, timeout=30, umask=0o077)
    assert (tmp_path / "users.acl").stat().st_mode & 0o777 == 0o644, "root writes it, the store's own user reads it"
    assert (tmp_path / "users.acl").read_text().splitlines()[1] == stores.users().splitlines()[1]


def test_compose_watches_both_servers(compose: dict[str, Any]) -> None:
    services = compose["services"]
    mounted = {each.split(":")[0] for name in ("prometheus", "grafana", "store") for each in services[name]["volumes"]}
    for path in sorted(each for each in mounted if each.startswith("./")):
        assert (DEPLOY / path).exists(), path
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = scraped["scrape_configs"]
    assert job["authorization"]["credentials_file"].endswith("/viewer-token"), "a leak of it changes nothing"
    names = {name for name, service in services.items() if service.get("image") == "fairq"}
    assert set(job["static_configs"][0]["targets"]) == {f"{name}:{METRICS_PORT}" for name in names}
    assert all(service["environment"]["FAIRQ_METRICS_HOST"] for service in servers_of(compose))
    plain = [each for each in services.values() if "tls" not in each.get("profiles", ())]
    assert all(port.startswith("127.0.0.1:") for service in plain for port in service.get("ports", ()))


# fairq.service


def environment_of(unit: configparser.ConfigParser) -> dict[str, str]:
    return dict(word.split("=", 1) for word in unit["Service"]["Environment"].split())


def test_unit_drains_on_stop_and_writes_where_it_may(unit: configparser.ConfigParser) -> None:
    service = unit["Service"]
    assert environment_of(unit)["FAIRQ_DATA_DIR"] == f"/var/lib/{service['StateDirectory']}"
    assert int(service["LimitNOFILE"]) > Settings().max_connections
    assert service["KillSignal"] == "SIGTERM"
    assert service["KillMode"] == "mixed"  # the embedded store must outlive the drain
    assert seconds(service["TimeoutStopSec"]) >= float(environment_of(unit)["FAIRQ_GRACE"]) + GIVE_BACK_S


def test_unit_settings_exist(unit: configparser.ConfigParser) -> None:
    variables = {name: value for name, value in environment_of(unit).items() if name.startswith("FAIRQ_")}
    assert variables.keys() <= {f"FAIRQ_{setting.name.upper()}" for setting in attrs.fields(Settings)}
    load_settings(DEPLOY / "fairq.toml", variables, {})


# fairq.toml


def test_settings_file_holds_the_defaults() -> None:
    assert load_settings(DEPLOY / "fairq.toml", {}, {}) == Settings()


def test_settings_file_has_every_setting() -> None:
    text = (DEPLOY / "fairq.toml").read_text()
    set_here = tomllib.loads(text).keys()
    for setting in attrs.fields(Settings):
        if getattr(Settings(), setting.name) is None:  # TOML has no word for none
            assert re.search(rf"^# {setting.name} = \S", text, re.MULTILINE), setting.name
        else:
            assert setting.name in set_here


def test_settings_named_in_comments_exist() -> None:
    names = re.findall(r"^# (\w+) = ", (DEPLOY / "fairq.toml").read_text(), re.MULTILINE)
    assert set(names) <= {setting.name for setting in attrs.fields(Settings)}


# valkey.conf


def test_store_takes_its_configuration(store_kind: str, tmp_path: Path) -> None:
    server = ConfiguredServer(store_kind, tmp_path)
    server.start()
    try:
        client = stores.connect(server.url)
        config = client.config_get("append*", "maxmemory*", "save", "no-appendfsync-on-rewrite")
        client.close()
    finally:
        server.stop()
    text = {name.decode() if isinstance(name, bytes) else name: value for name, value in config.items()}
    values = {name: value.decode() if isinstance(value, bytes) else value for name, value in text.items()}
    assert values["appendonly"] == "yes"
    assert values["appendfsync"] == "always"
    assert values["maxmemory-policy"] == "noeviction"
    assert values["maxmemory"] == str(2 << 30)
    assert values["save"] == ""


class ConfiguredServer(stores.LocalServer):
    """A store with deploy/valkey.conf, but for the port, the address and the directory."""

    def __init__(self, kind: str, directory: Path) -> None:
        super().__init__(kind, directory)
        self._program = wrap(self._program, directory)
        self._settings = {"bind": stores.HOST, "port": str(self.port), "dir": str(directory)}


def wrap(program: Path, directory: Path) -> Path:
    """Make a program that runs the store with the configuration file before its other arguments."""
    script = directory / "store"
    script.write_text(f'#!/bin/sh\nexec "{program}" "{DEPLOY / "valkey.conf"}" "$@"\n')
    script.chmod(0o755)
    return script


# Dockerfile


def instructions() -> list[tuple[str, str]]:
    """Read the Dockerfile's instructions, with continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text()
    lines = re.sub(r"\\\n\s*", " ", "\n".join(x for x in text.splitlines() if not x.startswith("#"))).splitlines()
    return [(word, rest) for word, _, rest in (line.strip().partition(" ") for line in lines) if word]


def test_image_checks_its_health_keeps_its_data_and_runs_as_no_root() -> None:
    found = dict(instructions())
    assert found["USER"] == "fairq"
    assert all(isinstance(yaml.safe_load(found[name]), list) for name in ("ENTRYPOINT", "CMD")), "in exec form"
    form = yaml.safe_load(found["HEALTHCHECK"].partition("CMD ")[2])
    assert form[:2] == ["python", "-c"]
    environment = dict(word.split("=", 1) for word in found["ENV"].split())
    assert found["VOLUME"] == environment["FAIRQ_DATA_DIR"]
    assert environment["FAIRQ_ADMIN_PORT"] == str(ADMIN_PORT)
    assert found["EXPOSE"] == f"{Settings().port} {HTTP_PORT}"


def test_image_has_the_allocator_that_the_embedded_store_runs_with() -> None:
    package = ALLOCATOR["LD_PRELOAD"].replace(".so.", "")  # as Debian names it
    assert any(word == "RUN" and package in rest.split() for word, rest in instructions())


def test_image_takes_only_what_it_needs() -> None:
    root = DEPLOY.parent
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            assert all((root / source).exists() for source in rest.split()[:-1])
    ignore = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert next(line for line in ignore if not line.startswith("#")) == "*"


# all of them


def test_no_file_names_a_registry_or_a_private_path() -> None:
    ours = r"app\.example\.com|fairq|127\.0\.0\.1|prometheus|json-schema\.org|\$host"
    for path in sorted(path for path in DEPLOY.rglob("*") if path.is_file()):
        text = path.read_text()
        assert not re.search(rf"https?://(?!{ours})", text), path
        assert not re.search(r"/(home|root|work|Users)/|docker\.io|ghcr\.io|quay\.io|pypi\.org", text), path
