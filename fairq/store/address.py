"""The address of a store: what its URL says."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from redis.connection import parse_url

from fairq.errors import SettingsError

_EXPECTED = "redis://user:password@host:port/0, rediss:// or unix://; in a password write / as %2F, # as %23, ? as %3F"


@frozen
class Address:
    """The store's address and login; `shown` is the URL without its password."""

    shown: str
    host: str = "127.0.0.1"
    port: int = 6379
    path: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read redis://, rediss:// or unix:// as redis-py does. Raises: SettingsError."""
        try:
            parts: dict[str, Any] = dict(parse_url(url))
        except ValueError:  # its text may quote a password
            raise SettingsError(f"invalid store URL: expected {_EXPECTED}", field="store") from None
        if url.startswith("unix:") and not parts.get("path"):
            raise SettingsError("invalid store URL: no socket path; expected unix:///path/to.sock", field="store")
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
