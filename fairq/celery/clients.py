"""The client with which a process sends messages: one for each server and token, which its threads share."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kombu import Connection
from kombu.exceptions import OperationalError

from fairq.celery.addresses import tls_of, tokens_of, url_of
from fairq.client import client
from fairq.client.channel import check_token, choose_servers
from fairq.client.connect_steps import Servers
from fairq.errors import BadRequest, FairqError, Retryable
from fairq.model.outcomes import read_sent
from fairq.model.tasks import NewTask
from fairq.sync.blocking import finish
from fairq.sync.client import Client
from fairq.sync.driver import Driver

_TIMEOUT_S = 5.0  # where `broker_connection_timeout` is None

R = TypeVar("R")


class _Driver(Driver):
    @staticmethod
    def _check_thread() -> None:
        """Allow calls in an event loop: it stands still, as in `delay()` with every broker."""


class Sender(NamedTuple):
    """A client, the driver below it, and for how long each call waits."""

    client: Client
    driver: Driver
    timeout: float


_Key = tuple[str, str | None, ssl.SSLContext | None, float]

opened: dict[_Key, Sender] = {}
_lock = threading.Lock()


def _sender(info: Connection) -> Sender:
    key = url, token, tls, timeout = url_of(info), tokens_of(info)[1], tls_of(info), info.connect_timeout or _TIMEOUT_S
    with _lock:
        if key not in opened:
            driver = _Driver(Servers(choose_servers(url, tls)), None if token is None else check_token(token))
            opened[key] = Sender(Client(client.Client(driver, timeout), driver), driver, timeout)
        return opened[key]


def call(info: Connection, ask: Callable[[Sender], R]) -> R:
    """Ask something of the server, and wait for the answer.

    Raises: Retryable, after the connection's time-out: kombu tries again; OperationalError for all other refusals.
    """
    return refused(lambda: ask(_sender(info)))


def enqueue(info: Connection, queue: str, task: NewTask, spare_id: str, *, is_repeated: bool) -> bool:
    """Enqueue a task; returns False if it has expired already. Raises: as `call`.

    Celery may use an id again. If another task has had it, this one gets its spare id; but not if the task that has it
    may be this one: `is_repeated`, or the answer to the first frame was lost.
    """

    def ask(sender: Sender) -> bool:
        try:
            outcome, in_doubt = _enqueue(sender, queue, task)
            if read_sent(outcome)[0] == "duplicate" and not (in_doubt or is_repeated):
                outcome, _ = _enqueue(sender, queue, task._replace(id=spare_id))
        except BadRequest as error:
            if error.field not in ("expires_at_ms", "expires_in_ms"):
                raise
            return False
        return outcome != "expired"

    return call(info, ask)


def _enqueue(sender: Sender, queue: str, task: NewTask) -> tuple[str, bool]:
    """Enqueue a task; returns the outcome, and whether an earlier frame may have had another."""
    driver = sender.driver
    sent = driver.enqueue(queue, [task], driver.now() + sender.timeout)
    (outcome,) = finish(driver.wait(sent))
    return outcome, sent.in_doubt


def refused(ask: Callable[[], R]) -> R:
    """Ask something; a refusal that is final is raised as an error of Celery's."""
    try:
        return ask()
    except Retryable:
        raise
    except FairqError as error:
        raise OperationalError(f"{error.message} ({error.code})") from error
