"""The calls of the SDK for operators, for threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define

from fairq.client import operator
from fairq.client.requests import DEFAULT_TIMEOUT
from fairq.sync.blocking import call, driver_to, steps
from fairq.sync.client import Client

if TYPE_CHECKING:
    import ssl


@define(eq=False)
class OperatorClient(Client):
    """A client with an operator's token; see `fairq.OperatorClient`."""

    queues = call(operator.OperatorClient.queues)
    configure = call(operator.OperatorClient.configure)
    delete_queue = call(operator.OperatorClient.delete_queue)
    deleting_queue = steps(operator.OperatorClient.deleting_queue)
    queue_exists = call(operator.OperatorClient.queue_exists)
    purging_queue = steps(operator.OperatorClient.purging_queue)
    delete_tenant = call(operator.OperatorClient.delete_tenant)
    empty_tenant = call(operator.OperatorClient.empty_tenant)
    repair_queue = call(operator.OperatorClient.repair_queue)
    repairing_queue = steps(operator.OperatorClient.repairing_queue)
    tenants = call(operator.OperatorClient.tenants)
    set_weight = call(operator.OperatorClient.set_weight)
    limits = call(operator.OperatorClient.limits)
    set_limits = call(operator.OperatorClient.set_limits)
    set_opening_hours = call(operator.OperatorClient.set_opening_hours)
    pause = call(operator.OperatorClient.pause)
    resume = call(operator.OperatorClient.resume)
    report = call(operator.OperatorClient.report)
    history = call(operator.OperatorClient.history)
    add_webhook = call(operator.OperatorClient.add_webhook)
    remove_webhook = call(operator.OperatorClient.remove_webhook)
    pause_webhook = call(operator.OperatorClient.pause_webhook)
    resume_webhook = call(operator.OperatorClient.resume_webhook)
    webhooks = call(operator.OperatorClient.webhooks)
    workers = call(operator.OperatorClient.workers)
    worker_tasks = call(operator.OperatorClient.worker_tasks)
    attempts = call(operator.OperatorClient.attempts)
    drain_worker = call(operator.OperatorClient.drain_worker)
    create_token = call(operator.OperatorClient.create_token)
    list_tokens = call(operator.OperatorClient.list_tokens)
    revoke_token = call(operator.OperatorClient.revoke_token)
    audit = call(operator.OperatorClient.audit)


def open_operator(
    url: str | Sequence[str] | None = None,
    *,
    token: str | None = None,
    tls: ssl.SSLContext | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> OperatorClient:
    """Open an operator's client, as `open_client` opens a tenant's."""
    driver = driver_to(url, token, tls)
    return OperatorClient(operator.OperatorClient(driver, timeout), driver)
