"""The server's settings: defaults, then a TOML file, then FAIRQ_* variables, then flags; later ones win."""

from __future__ import annotations

import ipaddress
import math
import tomllib
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import cattrs
from attrs import evolve, field, frozen

from fairq.errors import SettingsError
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES

DEFAULT_PORT, HTTP_PORT, ADMIN_PORT, METRICS_PORT = 7700, 7701, 7702, 7703
_LOOPBACK, _EVERYWHERE = "127.0.0.1", {"", "0.0.0.0", "::"}
_LEVELS = ("debug", "info", "warning", "error")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_MAX_PORT = 65_535
_ROOM_BYTES = 1 << 20  # of a message, in addition to its longest payload
_RANGES = (  # setting, lowest, highest, and how a message says it
    *((name, 0, _MAX_PORT, f"0 to {_MAX_PORT}") for name in ("port", "http_port", "admin_port", "metrics_port")),
    ("store_timeout", 0.001, 3_600, "over 0 and at most 3600 seconds"),
    ("grace", 0, 86_400, "0 to 86400 seconds"),
    ("reconnect_grace", 0, 60, "0 to 60 seconds"),
    ("wait_replicas", 0, 100, "0 to 100"),
    ("processes", 1, 256, "1 to 256"),
    *(
        (name, 1, math.inf, "at least 1")
        for name in ("max_connections", "connections_per_tenant", "requests_per_second")
    ),
    ("connections_per_address", 0, math.inf, "at least 0"),
    ("bytes_per_second", 65_536, math.inf, "at least 65536"),
    ("max_payload_bytes", MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES, f"{MAX_INLINE_BYTES} to {MAX_PAYLOAD_BYTES}"),
    ("queue_quota", 0, 1_000_000, "0 to 1000000"),
)
_OWN_PORT = {
    "http_port": "must be another port than that of the websockets",
    "admin_port": "must be a port of its own",
    "metrics_port": "must be a port of its own, and so must be those behind it, one for each process",
}
_WITHOUT_TLS = {
    "port": "is needed to listen on",
    "http_port": "is needed to serve HTTP on",
    "admin_port": "is needed to serve operators on",
    "metrics_port": "is needed to serve metrics on",
}


@frozen
class Settings:
    """The settings of `fairq serve`; their names are used in the file, the variables and the flags."""

    host: Annotated[str, "address to listen on"] = "127.0.0.1"
    port: Annotated[int, "port to listen on (0: any free port)"] = DEFAULT_PORT
    http_host: Annotated[
        str | None, "address of the HTTP API for tenants, producers and workers (none: that of host)"
    ] = None
    http_port: Annotated[
        int | None,
        "port of the HTTP API (0: any free port); it is off unless http_host or http_port is set, or with dev",
    ] = None
    http_cors_origins: Annotated[list[str], "browser origins that may use the HTTP API"] = field(factory=list)
    admin_host: Annotated[str | None, "address of the operators' listener: health and metrics (none: 127.0.0.1)"] = None
    admin_port: Annotated[
        int | None, "port of the operators' listener (0: any free port); off unless one of these is set, or with dev"
    ] = None
    metrics_host: Annotated[str | None, "address of a listener for /metrics alone (none: that of admin_host)"] = None
    metrics_port: Annotated[
        int | None,
        "port of a listener for /metrics alone (0: any free port), and of each of `processes` from it on; "
        "off unless one of these is set",
    ] = None
    store: Annotated[
        str | None,
        "store URL: redis://, rediss://, unix://, redis://a,b/0 of a cluster, or redis+sentinel://a,b/NAME/0 "
        "(none: the embedded store)",
    ] = field(default=None, repr=False)  # it may have a password
    data_dir: Annotated[Path, "directory of the embedded store"] = Path("fairq-data")
    fsync: Annotated[str, "embedded store: a power cut loses nothing (`always`) or up to a second (`everysec`)"] = (
        "always"
    )
    store_timeout: Annotated[float, "seconds to wait for the store at start"] = 30.0
    wait_replicas: Annotated[
        int, "replicas of the store that must have a task before it is acknowledged (0: the primary alone)"
    ] = 0
    repair: Annotated[bool, "repair all queues before serving, as after an unclean shutdown"] = False
    grace: Annotated[float, "seconds that workers get to finish their tasks when the server stops"] = 30.0
    reconnect_grace: Annotated[float, "seconds to keep a worker's tasks for it when its connection broke"] = 0.5
    dev: Annotated[
        bool,
        "accept the tokens `dev-tenant:<name>`, dev-producer, dev-worker, dev-operator, dev-viewer (loopback only)",
    ] = False
    unsafe_store: Annotated[bool, "serve even if the store could lose acknowledged tasks"] = False
    tls_cert: Annotated[Path | None, "certificate chain (PEM), for wss://"] = None
    tls_key: Annotated[Path | None, "private key (PEM) of the certificate"] = None
    plaintext: Annotated[bool, "allow ws:// on addresses other than loopback (behind a TLS proxy)"] = False
    origins: Annotated[list[str], "browser origins that may connect"] = field(factory=list)
    processes: Annotated[int, "server processes that share the port"] = 1
    max_connections: Annotated[int, "connections at once, at most"] = 10_000
    connections_per_address: Annotated[
        int, "connections at once from one address (IPv6: one /64) other than loopback (0: no limit)"
    ] = 2_000
    connections_per_tenant: Annotated[int, "connections at once of one tenant"] = 1_000
    requests_per_second: Annotated[
        int, "requests per second of one tenant over all its connections; more requests wait"
    ] = 5_000
    bytes_per_second: Annotated[int, "bytes per second of one tenant over all its connections; more bytes wait"] = (
        64 << 20
    )
    max_payload_bytes: Annotated[int, "longest payload of a task, in bytes (65536 to 16777216)"] = DEFAULT_PAYLOAD_BYTES
    queue_quota: Annotated[
        int, "queues that each tenant may create, by being the first to use them (0: only operators create queues)"
    ] = 100
    log_level: Annotated[str, "one of debug, info, warning and error"] = "info"
    log_json: Annotated[bool, "log JSON lines"] = False

    def check(self) -> Settings:
        """Check ranges and combinations. Raises: SettingsError, naming the setting."""
        hosts = {name: host for name, addresses in self._listeners.items() for host, _ in addresses}
        rules = [
            (low <= (getattr(self, name) or 0) <= high, name, f"must be {words}") for name, low, high, words in _RANGES
        ]
        rules += [
            (not any(_meet(one, other) for one in mine for other in others), name, _OWN_PORT[name])
            for (_, others), (name, mine) in combinations(self._listeners.items(), 2)
        ]
        rules += [
            (
                all(port <= _MAX_PORT for _, port in self.metrics_addresses),
                "metrics_port",
                "must leave a port for each process: they are numbered from it on",
            ),
            (self.store is not None or not self.wait_replicas, "wait_replicas", "needs a store with replicas"),
            (self.fsync in ("always", "everysec"), "fsync", "must be always or everysec"),
            (self.log_level in _LEVELS, "log_level", f"must be one of {', '.join(_LEVELS)}"),
            ((self.tls_cert is None) == (self.tls_key is None), "tls_key", "must be set together with tls_cert"),
            (
                not self.dev or all(map(_is_loopback, hosts.values())),
                "dev",
                "needs a loopback address: its tokens are not secret",
            ),
        ]
        rules += [
            (
                _is_loopback(host) or self.tls_cert is not None or self.plaintext,
                "tls_cert",
                f"{_WITHOUT_TLS[name]} {host}; behind a TLS proxy, set plaintext instead",
            )
            for name, host in hosts.items()
        ]
        for holds, name, message in rules:
            if not holds:
                raise SettingsError(f"setting {name} {message}", field=name)
        return self

    @property
    def _listeners(self) -> dict[str, list[tuple[str, int]]]:
        """Return where the listeners that are on listen, by the settings of their ports."""
        one = {"port": (self.host, self.port), "http_port": self.http_address, "admin_port": self.admin_address}
        found = {name: [address] for name, address in one.items() if address}
        return found | {"metrics_port": self.metrics_addresses}

    @property
    def message_bytes(self) -> int:
        """Return the longest message accepted."""
        return self.max_payload_bytes + _ROOM_BYTES

    @property
    def is_admin_loopback(self) -> bool:
        """True if only this machine can reach the operators' listener."""
        return _is_loopback(self.admin_host or _LOOPBACK)

    @property
    def is_metrics_loopback(self) -> bool:
        """True if only this machine can reach the listener for /metrics alone."""
        return _is_loopback(self.metrics_host or self.admin_host or _LOOPBACK)

    def with_all_for_dev(self) -> Settings:
        """Return the settings with both HTTP listeners on if they are for development: at the ports next to 7700.

        With another port they take free ones, which the line that says `serving` names.
        """
        if not self.dev:
            return self
        is_usual = self.port == DEFAULT_PORT
        found = self if self.http_address else evolve(self, http_port=HTTP_PORT if is_usual else 0)
        if not found.admin_address:
            found = evolve(found, admin_port=ADMIN_PORT if is_usual else 0)
        return found.check()

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Return where the HTTP API listens, if it is on."""
        return _address(self.http_host, self.http_port, self.host, HTTP_PORT)

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Return where the operators' listener listens, if it is on."""
        return _address(self.admin_host, self.admin_port, _LOOPBACK, ADMIN_PORT)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Return where a listener for /metrics alone listens, if it is on."""
        return _address(self.metrics_host, self.metrics_port, self.admin_host or _LOOPBACK, METRICS_PORT)

    @property
    def metrics_addresses(self) -> list[tuple[str, int]]:
        """Return where each process has a listener for /metrics alone; empty if there are none."""
        if not self.metrics_address:
            return []
        host, port = self.metrics_address
        return [(host, port + number if port else 0) for number in range(self.processes)]


def _address(host: str | None, port: int | None, default_host: str, default_port: int) -> tuple[str, int] | None:
    """Return where a listener listens: it is on if its host or its port is set."""
    if host is None and port is None:
        return None
    return host or default_host, default_port if port is None else port


def _meet(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """True if two listeners would have the same port of an address."""
    is_same = one[0] == other[0] or not _EVERYWHERE.isdisjoint((one[0], other[0]))
    return is_same and one[1] == other[1] != 0


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


HELP = {name: kind.__metadata__[0] for name, kind in get_type_hints(Settings, include_extras=True).items()}
_EXPECTED: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", list[str]: "a list"}


def _boolean(value: Any, _: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _BOOLEANS:
        return _BOOLEANS[value.lower()]
    raise ValueError("must be true or false")


def _names(value: Any, _: object) -> list[str]:
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return [str(name) for name in value]


def _strictly(*kinds: type) -> Callable[[Any, Any], Any]:
    def structure(value: Any, kind: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, *kinds)):
            raise ValueError("has the wrong type")
        return kind(value)

    return structure


_converter = cattrs.Converter(detailed_validation=False)
_converter.register_structure_hook(bool, _boolean)
for _kind, _from in ((str, ()), (int, (int,)), (float, (int, float))):
    _converter.register_structure_hook(_kind, _strictly(*_from))
_converter.register_structure_hook_func(lambda kind: kind == list[str], _names)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"settings file {path}: {error.strerror}", field="config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"settings file {path} is not TOML: {error}", field="config") from None


def load_settings(config: Path | None, environment: Mapping[str, str], flags: Mapping[str, Any]) -> Settings:
    """Merge file, environment and flags (None: not given) into checked settings. Raises: SettingsError."""
    merged: dict[str, tuple[Any, str]] = {}
    for name, value in (_read_file(config) if config else {}).items():
        if name not in HELP:
            raise SettingsError(f"settings file {config}: there is no setting {name}", field=name)
        merged[name] = (value, f"settings file {config}: {name}")
    for name in HELP:
        if (text := environment.get(f"FAIRQ_{name.upper()}")) is not None:
            merged[name] = (text, f"FAIRQ_{name.upper()}")
    for name, value in flags.items():
        if value is not None:
            merged[name] = (value, f"--{name.replace('_', '-')}")
    values: dict[str, Any] = {}
    hints = get_type_hints(Settings)
    for name, (value, source) in merged.items():
        try:
            values[name] = _converter.structure(value, hints[name])
        except Exception:
            expected = _EXPECTED.get(hints[name], "text")
            raise SettingsError(f"{source}: {value!r} is not a valid value: expected {expected}", field=name) from None
    return Settings(**values).check()
