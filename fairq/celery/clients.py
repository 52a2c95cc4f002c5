"""The client with which a process sends messages: one for each server and token, which its threads share."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from kombu import Connection
from kombu.exceptions import OperationalError

from fairq.client import client
from fairq.client.channel import check_token, choose_servers
from fairq.client.connect_steps import Servers
from fairq.errors import BadRequest, FairqError, Retryable
from fairq.model.tasks import NewTask
from fairq.sync.client import Client
from fairq.sync.driver import Driver

DEFAULT_PORT = 7700
_TIMEOUT_S = 5.0  # where `broker_connection_timeout` is None

R = TypeVar("R")


class _Driver(Driver):
    @staticmethod
    def _check_thread() -> None:
        """Allow calls in an event loop: it stands still, as in `delay()` with every broker."""


_Key = tuple[str, str | None, ssl.SSLContext | None, float]

opened: dict[_Key, Client] = {}
_lock = threading.Lock()


def url_of(info: Connection) -> str:
    """Return the URL of a connection's server."""
    host = info.hostname or "localhost"
    return f"{'wss' if info.ssl else 'ws'}://{f'[{host}]' if ':' in host else host}:{info.port or DEFAULT_PORT}"


def tokens_of(info: Connection) -> tuple[str | None, str | None]:
    """Return the tokens with which to receive and to send: the password's two parts around a comma, or all of it."""
    receiving, _, sending = (info.password or "").partition(",")
    return receiving or None, sending or receiving or None


@cache
def _context(ca_certs: str | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_certs)


def tls_of(info: Connection) -> ssl.SSLContext | None:
    """Return the TLS of `broker_use_ssl`: True, or a dictionary that may have `ca_certs`."""
    options: Any = info.ssl
    return _context(options.get("ca_certs") if isinstance(options, dict) else None) if options else None


def _client(*key: *_Key) -> Client:
    with _lock:
        if key not in opened:
            url, token, tls, timeout = key
            driver = _Driver(Servers(choose_servers(url, tls)), None if token is None else check_token(token))
            opened[key] = Client(client.Client(driver, timeout), driver)
        return opened[key]


def call(info: Connection, ask: Callable[[Client], R]) -> R:
    """Ask something of the server, and wait for the answer.

    Raises: Retryable, after the connection's time-out: kombu tries again; OperationalError for all other refusals.
    """
    key = url_of(info), tokens_of(info)[1], tls_of(info), info.connect_timeout or _TIMEOUT_S
    return refused(lambda: ask(_client(*key)))


def enqueue(info: Connection, queue: str, task: NewTask) -> bool:
    """Enqueue a task; returns False if it has expired already. Raises: as `call`."""

    def ask(sender: Client) -> bool:
        try:
            sender.enqueue_tasks(queue, [task])
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
