"""The server's settings: defaults, then a TOML file, then FAIRQ_* variables, then flags; later ones win."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import cattrs
from attrs import evolve, field, fields, frozen

from fairq.errors import SettingsError
from fairq.model.checks import DEFAULT_PAYLOAD_BYTES, MAX_INLINE_BYTES, MAX_PAYLOAD_BYTES

DEFAULT_PORT, HTTP_PORT, ADMIN_PORT, METRICS_PORT = 7700, 7701, 7702, 7703
_LOOPBACK, _EVERYWHERE = "127.0.0.1", {"", "0.0.0.0", "::"}
_LEVELS = ("debug", "info", "warning", "error")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_FRAME_BYTES, _ROOM_BYTES = 1 << 10, 1 << 20  # of a message beside its longest payload: at least, and by default

HELP = {
    "host": "address to listen on",
    "port": "port to listen on (0: any free port)",
    "http_host": "address of the HTTP API for tenants, producers and workers (none: that of host)",
    "http_port": "port of the HTTP API (0: any free port); it is off unless http_host or http_port is set, or with dev",
    "admin_host": "address of the operators' listener: health and metrics (none: 127.0.0.1)",
    "admin_port": "port of the operators' listener (0: any free port); off unless one of these is set, or with dev",
    "metrics_host": "address of a listener for /metrics alone (none: that of admin_host)",
    "metrics_port": "port of a listener for /metrics alone (0: any free port), and of each of `processes` from it on; "
    "off unless one of these is set",
    "http_cors_origins": "browser origins that may use the HTTP API",
    "store": "store URL: redis://, rediss://, unix://, or redis://a,b/0 of a cluster (none: the embedded store)",
    "data_dir": "directory of the embedded store",
    "fsync": "embedded store: in a power cut `always` loses nothing, `everysec` up to one second",
    "store_timeout": "seconds to wait for the store at start",
    "repair": "repair all queues before serving, as after an unclean shutdown",
    "grace": "seconds that workers get to finish their tasks when the server stops",
    "reconnect_grace": "seconds to keep a worker's tasks for it when its connection broke",
    "dev": "accept the tokens dev-tenant:<name>, dev-producer, dev-worker and dev-operator (loopback only)",
    "unsafe_store": "serve even if the store could lose acknowledged tasks",
    "tls_cert": "certificate chain (PEM), for wss://",
    "tls_key": "private key (PEM) of the certificate",
    "plaintext": "allow ws:// on addresses other than loopback (behind a TLS proxy)",
    "origins": "browser origins that may connect",
    "processes": "server processes that share the port",
    "max_connections": "connections at once, at most",
    "connections_per_address": "connections at once from one address (IPv6: one /64) other than loopback (0: no limit)",
    "connections_per_tenant": "connections at once of one tenant",
    "requests_per_second": "requests per second of one tenant over all its connections; more requests wait",
    "bytes_per_second": "bytes per second of one tenant over all its connections; more bytes wait",
    "max_payload_bytes": "longest payload of a task, in bytes (65536 to 16777216)",
    "max_message_bytes": "longest message accepted, in bytes (0: 1 MiB over max_payload_bytes)",
    "queue_quota": "queues that each tenant may create, by being the first to use them (0: none)",
    "log_level": "debug, info, warning or error",
    "log_json": "log JSON lines",
}


@frozen
class Settings:
    """The settings of `fairq serve`; their names are used in the file, the variables and the flags."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    http_host: str | None = None
    http_port: int | None = None
    http_cors_origins: list[str] = field(factory=list)
    admin_host: str | None = None
    admin_port: int | None = None
    metrics_host: str | None = None
    metrics_port: int | None = None
    store: str | None = None
    data_dir: Path = Path("fairq-data")
    fsync: str = "always"
    store_timeout: float = 30.0
    repair: bool = False
    grace: float = 30.0
    reconnect_grace: float = 0.5
    dev: bool = False
    unsafe_store: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    plaintext: bool = False
    origins: list[str] = field(factory=list)
    processes: int = 1
    max_connections: int = 10_000
    connections_per_address: int = 2_000
    connections_per_tenant: int = 1_000
    requests_per_second: int = 5_000
    bytes_per_second: int = 64 << 20
    max_payload_bytes: int = DEFAULT_PAYLOAD_BYTES
    max_message_bytes: int = 0
    queue_quota: int = 100
    log_level: str = "info"
    log_json: bool = False

    def check(self) -> Settings:
        """Check ranges and combinations. Raises: SettingsError, naming the setting."""
        rules = (
            (0 <= self.port <= 65_535, "port", "must be 0 to 65535"),
            (0 <= (self.http_port or 0) <= 65_535, "http_port", "must be 0 to 65535"),
            (
                not _meet(self.http_address, (self.host, self.port)),
                "http_port",
                "must be another port than that of the websockets",
            ),
            (0 <= (self.admin_port or 0) <= 65_535, "admin_port", "must be 0 to 65535"),
            (
                not any(_meet(self.admin_address, other) for other in (self.http_address, (self.host, self.port))),
                "admin_port",
                "must be a port of its own",
            ),
            (0 <= (self.metrics_port or 0) <= 65_535, "metrics_port", "must be 0 to 65535"),
            (
                not any(
                    _meet(address, other)
                    for address in self.metrics_addresses
                    for other in (self.admin_address, self.http_address, (self.host, self.port))
                ),
                "metrics_port",
                "must be a port of its own, and so must be those behind it, one for each process",
            ),
            (
                all(port <= 65_535 for _, port in self.metrics_addresses),
                "metrics_port",
                "must leave a port for each process: they are numbered from it on",
            ),
            (self.fsync in ("always", "everysec"), "fsync", "must be always or everysec"),
            (0 < self.store_timeout <= 3600, "store_timeout", "must be over 0 and at most 3600 seconds"),
            (0 <= self.grace <= 86_400, "grace", "must be 0 to 86400 seconds"),
            (1 <= self.processes <= 256, "processes", "must be 1 to 256"),
            (0 <= self.reconnect_grace <= 60, "reconnect_grace", "must be 0 to 60 seconds"),
            (self.max_connections > 0, "max_connections", "must be at least 1"),
            (self.connections_per_address >= 0, "connections_per_address", "must be at least 0"),
            (self.connections_per_tenant > 0, "connections_per_tenant", "must be at least 1"),
            (self.requests_per_second > 0, "requests_per_second", "must be at least 1"),
            (self.bytes_per_second >= 65_536, "bytes_per_second", "must be at least 65536"),
            (
                MAX_INLINE_BYTES <= self.max_payload_bytes <= MAX_PAYLOAD_BYTES,
                "max_payload_bytes",
                f"must be {MAX_INLINE_BYTES} to {MAX_PAYLOAD_BYTES}",
            ),
            (
                self.message_bytes >= self.max_payload_bytes + _FRAME_BYTES,
                "max_message_bytes",
                f"must be 0, or at least {_FRAME_BYTES} more than max_payload_bytes, {self.max_payload_bytes}",
            ),
            (0 <= self.queue_quota <= 1_000_000, "queue_quota", "must be 0 to 1000000"),
            (self.log_level in _LEVELS, "log_level", f"must be one of {', '.join(_LEVELS)}"),
            ((self.tls_cert is None) == (self.tls_key is None), "tls_key", "must be set together with tls_cert"),
            (
                not self.dev or all(map(_is_loopback, self._hosts)),
                "dev",
                "needs a loopback address: its tokens are not secret",
            ),
            (
                _is_loopback(self.http_host or self.host) or self.tls_cert is not None or self.plaintext,
                "tls_cert",
                f"is needed to serve HTTP on {self.http_host}; behind a TLS proxy, set plaintext instead",
            )
            if self.http_address
            else (True, "", ""),
            (
                self.is_admin_loopback or self.tls_cert is not None or self.plaintext,
                "tls_cert",
                f"is needed to serve operators on {self.admin_host}; behind a TLS proxy, set plaintext instead",
            ),
            (
                self.is_metrics_loopback or self.tls_cert is not None or self.plaintext,
                "tls_cert",
                f"is needed to serve metrics on {self.metrics_host}; behind a TLS proxy, set plaintext instead",
            ),
            (
                self.is_loopback or self.tls_cert is not None or self.plaintext,
                "tls_cert",
                f"is needed to listen on {self.host}; behind a TLS proxy, set plaintext instead",
            ),
        )
        for holds, name, message in rules:
            if not holds:
                raise SettingsError(f"setting {name} {message}", field=name)
        return self

    @property
    def _hosts(self) -> tuple[str, ...]:
        admin = self.admin_host or _LOOPBACK
        return self.host, self.http_host or self.host, admin, self.metrics_host or admin

    @property
    def message_bytes(self) -> int:
        """Return the longest message accepted."""
        return self.max_message_bytes or self.max_payload_bytes + _ROOM_BYTES

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach the server."""
        return _is_loopback(self.host)

    @property
    def is_admin_loopback(self) -> bool:
        """True if only this machine can reach the operators' listener."""
        return _is_loopback(self.admin_host or _LOOPBACK)

    @property
    def is_metrics_loopback(self) -> bool:
        """True if only this machine can reach the listener for /metrics alone."""
        return _is_loopback(self.metrics_host or self.admin_host or _LOOPBACK)

    def with_all_for_dev(self) -> Settings:
        """Return the settings with both HTTP listeners on if they are for development: at their ports beside 7700.

        Beside another port they take free ones, which the line that says `serving` tells.
        """
        if not self.dev:
            return self
        is_usual = self.port == DEFAULT_PORT
        found = self if self.http_address else evolve(self, http_port=HTTP_PORT if is_usual else 0)
        if not found.admin_address:
            found = evolve(found, admin_port=ADMIN_PORT if is_usual else 0)
        return found.check()

    @property
    def admin_address(self) -> tuple[str, int] | None:
        """Return where the operators' listener listens, if it is on."""
        if self.admin_host is None and self.admin_port is None:
            return None
        return self.admin_host or _LOOPBACK, ADMIN_PORT if self.admin_port is None else self.admin_port

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Return where a listener for /metrics alone listens, if it is on."""
        if self.metrics_host is None and self.metrics_port is None:
            return None
        host = self.metrics_host or self.admin_host or _LOOPBACK
        return host, METRICS_PORT if self.metrics_port is None else self.metrics_port

    @property
    def metrics_addresses(self) -> list[tuple[str, int]]:
        """Return where each process has a listener for /metrics alone; empty if there are none."""
        if not self.metrics_address:
            return []
        host, port = self.metrics_address
        return [(host, port + number if port else 0) for number in range(self.processes)]

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Return where the HTTP API listens, if it is on."""
        if self.http_host is None and self.http_port is None:
            return None
        return self.http_host or self.host, HTTP_PORT if self.http_port is None else self.http_port


def _meet(one: tuple[str, int] | None, other: tuple[str, int] | None) -> bool:
    """True if two listeners would have the same port of an address."""
    if one is None or other is None or not one[1]:
        return False
    return one[1] == other[1] and (one[0] == other[0] or not _EVERYWHERE.isdisjoint((one[0], other[0])))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_NAMES = frozenset(f.name for f in fields(Settings))
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
            raise ValueError("is of another kind")
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
        if name not in _NAMES:
            raise SettingsError(f"settings file {config}: there is no setting {name}", field=name)
        merged[name] = (value, f"settings file {config}: {name}")
    for name in _NAMES:
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
