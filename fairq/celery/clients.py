"""The client with which a process sends messages: one for each server and token, which its threads share."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

from kombu import Connection
from kombu.exceptions import OperationalError

import fairq.sync
from fairq.errors import BadRequest, FairqError, Retryable
from fairq.model.tasks import NewTask
from fairq.sync.driver import check_thread

DEFAULT_PORT = 7700
_TIMEOUT_S = 5.0  # where `broker_connection_timeout` is None

R = TypeVar("R")

_Key = tuple[str, str | None, ssl.SSLContext | None, float]

opened: dict[_Key, fairq.sync.Client] = {}
_lock = threading.Lock()


def url_of(info: Connection) -> str:
    """Return the URL of a connection's server."""
    host = info.hostname or "localhost"
    return f"{'wss' if info.ssl else 'ws'}://{f'[{host}]' if ':' in host else host}:{info.port or DEFAULT_PORT}"


@cache
def _context(ca_certs: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_certs)


def tls_of(info: Connection) -> ssl.SSLContext | None:
    """Return the TLS of `broker_use_ssl`: True, or a dictionary that may have `ca_certs`."""
    options: Any = info.ssl
    return _context(options.get("ca_certs") if isinstance(options, dict) else None) if options else None


def _client(*key: *_Key) -> fairq.sync.Client:
    with _lock:
        if key not in opened:
            url, token, tls, timeout = key
            opened[key] = fairq.sync.open_client(url, token=token, tls=tls, timeout=timeout)
        return opened[key]


def call(info: Connection, ask: Callable[[fairq.sync.Client], R]) -> R:
    """Ask something of the server, and wait for the answer, in an event loop too: there a thread asks.

    Raises: Retryable, after the connection's time-out: kombu tries again; OperationalError for all other refusals.
    """

    def asked() -> R:
        return ask(_client(url_of(info), info.password, tls_of(info), info.connect_timeout or _TIMEOUT_S))

    try:
        check_thread()
    except RuntimeError:
        with ThreadPoolExecutor(1) as thread:
            return refused(thread.submit(asked).result)
    return refused(asked)


def enqueue(info: Connection, queue: str, task: NewTask) -> bool:
    """Enqueue a task; returns False if it has expired already. Raises: as `call`."""

    def ask(client: fairq.sync.Client) -> bool:
        try:
            client.enqueue_tasks(queue, [task])
        except BadRequest as error:
            if error.field not in ("expires_at", "expires_at_ms"):
                raise
            return False
        return True

    return call(info, ask)


def refused(ask: Callable[[], R]) -> R:
    """Ask something; a refusal that is final is raised as an error of Celery's."""
    try:
        return ask()
    except Retryable:
        raise
    except FairqError as error:
        raise OperationalError(f"{error.message} ({error.code})") from error
