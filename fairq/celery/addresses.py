"""What a broker URL and its settings say: where the server is, and the tokens."""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

from kombu import Connection

DEFAULT_PORT = 7700


def url_of(info: Connection) -> str:
    """Return the URL of a connection's server."""
    host = info.hostname or "localhost"
    return f"{'wss' if info.ssl else 'ws'}://{f'[{host}]' if ':' in host else host}:{info.port or DEFAULT_PORT}"


def tokens_of(info: Connection) -> tuple[str | None, str | None]:
    """Return the tokens with which to receive and to send: the password's two parts around a comma, or all of it."""
    receiving, _, sending = (info.password or "").partition(",")
    return receiving or None, sending or receiving or None


def tls_of(info: Connection) -> ssl.SSLContext | None:
    """Return the TLS of `broker_use_ssl`: True, or a dictionary that may have `ca_certs`."""
    options: Any = info.ssl
    return _context(options.get("ca_certs") if isinstance(options, dict) else None) if options else None


@cache
def _context(ca_certs: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_certs)
