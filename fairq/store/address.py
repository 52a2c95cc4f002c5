"""The address of a store: what its URL says."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from attrs import evolve, field, frozen
from redis.connection import parse_url

from fairq.errors import SettingsError

_EXPECTED = "redis://user:password@host:port/0, rediss:// or unix://; in a password write / as %2F, # as %23, ? as %3F"
_EXPECTED_SENTINELS = "redis+sentinel://user:password@host:26379,host:26379/NAME/0; NAME is that of the primary"
_SENTINEL, _SENTINEL_PORT = "+sentinel://", 26_379
_TCP = ("redis://", "rediss://")
_OPTIONS = ("username", "password", "db")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")  # of rediss://
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


@frozen
class Address:
    """The store's address and login; `shown` is the URL without its password.

    With `sentinels` it has no place of its own: it leads to the node that they name as the primary `name`.
    """

    shown: str
    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None
    sentinels: Sequence[Address] = ()
    name: str = ""

    @property
    def place(self) -> str:
        """Names the node: its socket's path, the name that sentinels know, or host and port."""
        return self.path or self.name or f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, url: str, options: Sequence[str] = _OPTIONS) -> Address:
        """Read redis://, rediss:// or unix:// as redis-py does, with no other options than these and TLS's.

        Raises: SettingsError.
        """
        try:
            _check_options(url, options)
            parts: dict[str, Any] = dict(parse_url(url))
        except ValueError:  # its text may quote a password
            raise SettingsError(f"invalid store URL: expected {_EXPECTED}", field="store") from None
        if url.startswith("unix:") and not parts.get("path"):
            raise SettingsError("invalid store URL: no socket path; expected unix:///path/to.sock", field="store")
        if url.startswith(_TCP) and not re.fullmatch("/?|/[0-9]+", urlsplit(url).path):  # redis-py would take 0
            raise SettingsError("invalid store URL: its database is not a number; expected host:port/0", field="store")
        try:
            tls = _tls(parts) if url.startswith("rediss:") else None
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(f"cannot load a certificate of the store URL: {error}", field="store") from None
        return cls(
            shown=without_secrets(url),
            host=parts.get("host", "127.0.0.1"),
            port=int(parts.get("port", 6379)),
            path=parts.get("path", ""),
            username=parts.get("username"),
            password=parts.get("password"),
            database=int(parts.get("db", 0)),
            tls=tls,
        )


def _check_options(url: str, known: Sequence[str]) -> None:
    """Raise SettingsError for an option that would be ignored, or ValueError where it may be a piece of a password."""
    query = urlsplit(url).query
    known = (*known, *(_TLS_OPTIONS if url.startswith("rediss:") else ()))
    if unknown := sorted(parse_qs(query, keep_blank_values=True).keys() - known):
        if "@" in query:
            raise ValueError("a ? in the login")
        why = f"with this scheme it has no option {unknown[0][:80]!r}; expected {', '.join(known)}"
        raise SettingsError(f"invalid store URL: {why}", field="store")


def parse_seeds(url: str) -> list[Address]:
    """Read a store URL; commas may separate several hosts, seeds of one cluster. Raises: SettingsError."""
    if _SENTINEL in url:
        return [_parse_sentinels(url)]
    scheme, login, hosts, rest = _split(url)
    if "," not in hosts or not url.startswith(_TCP):
        return [Address.parse(url)]
    return [Address.parse(f"{scheme}://{login}{host.strip()}{rest}") for host in hosts.split(",")]


def _split(url: str) -> tuple[str, str, str, str]:
    """Split a URL into its scheme, login with the @, hosts, and path with options; urlsplit refuses `a,[::1]`."""
    scheme, _, rest = url.partition("://")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    login, at, hosts = rest[:end].rpartition("@")
    return scheme, login + at, hosts, rest[end:]


def _parse_sentinels(url: str) -> Address:
    """Read the URL of a primary that Sentinel watches; the login is the nodes', that of sentinels is in the options."""
    scheme, login, hosts, rest = _split(url.replace(_SENTINEL, "://", 1))
    places = [
        host if ":" in host.rpartition("]")[2] else f"{host}:{_SENTINEL_PORT}" for host in hosts.split(",") if host
    ]
    parts = urlsplit(rest)
    name, _, database = parts.path.removeprefix("/").partition("/")
    if not name or not places or parts.fragment:
        raise SettingsError(f"invalid store URL: expected {_EXPECTED_SENTINELS}", field="store")
    options = parse_qs(parts.query)
    username, password = (options.get(f"sentinel_{each}", [None])[0] for each in ("username", "password"))
    node = Address.parse(f"{scheme}://{login}/{database}?{parts.query}", (*_OPTIONS, *_SENTINEL_OPTIONS))
    asked = [Address.parse(f"{scheme}://{place}") for place in places]
    sentinels = tuple(evolve(each, username=username, password=password, tls=node.tls) for each in asked)
    return evolve(node, shown=without_secrets(url), sentinels=sentinels, name=name)


def node_address(seed: Address, host: str, port: int) -> Address:
    """Return the address of another node, with a seed's login."""
    name = f"[{host}]" if ":" in host else host
    shown = f"{'rediss' if seed.tls else 'redis'}://{name}:{port}"
    return evolve(seed, shown=shown, host=host, port=port, path="", database=0, sentinels=(), name="")


def _tls(parts: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=parts.get("ssl_ca_certs"))
    if parts.get("ssl_certfile"):
        context.load_cert_chain(parts["ssl_certfile"], parts.get("ssl_keyfile"))
    return context


def without_secrets(url: str) -> str:
    """Return a store URL without its password and options, for messages."""
    scheme, _, rest = url.partition("://")
    login, at, place = rest.partition("?")[0].rpartition("@")
    user, colon, _ = login.partition(":")
    return f"{scheme}://{user}{colon and ':***'}{at}{place}"
