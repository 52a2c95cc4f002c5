"""The webhooks that are registered for a queue, as a worker serves them."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from attrs import define, evolve, field, frozen

from fairq.client.task import Task
from fairq.errors import SettingsError
from fairq.model.webhooks import Webhook, choose
from fairq.webhook.addresses import AddressRules
from fairq.webhook.answers import Verdict
from fairq.webhook.deliverer import Target
from fairq.webhook.secrets import VARIABLE
from fairq.webhook.signature import Signer
from fairq.webhook.urls import UrlTemplate

log = structlog.get_logger("fairq.webhook")

POSTPONE_S, MAX_POSTPONE_S = 15.0, 600.0  # a paused webhook's tasks: at first, and at most, as it doubles


@frozen
class Policy:
    """A worker's settings: the URLs that it may post to, and the secrets for webhooks without their own."""

    rules: AddressRules
    allow_hosts: Sequence[str] = ()
    plaintext: bool = False
    signer: Signer | None = None
    unsigned: bool = False

    def target_of(self, webhook: Webhook) -> Target:
        """Return where a webhook's tasks are posted to. Raises: SettingsError, saying why they are not."""
        url = UrlTemplate.parse(webhook.url, self.allow_hosts, plaintext=self.plaintext)
        url.check_address(self.rules)
        if webhook.secrets:
            return Target(url, Signer.parse(webhook.secrets, is_per_tenant=url.is_per_tenant))
        if self.signer is not None:
            return Target(url, evolve(self.signer, is_per_tenant=url.is_per_tenant))
        if not self.unsigned:
            message = f"missing secret: give the webhook one, or set {VARIABLE} or --secret-file, or use --unsigned"
            raise SettingsError(message, field="secret")
        return Target(url)


def log_webhook(queue: str, webhook: Webhook, target: Target | str) -> None:
    """Log whether tasks are posted to a webhook. The URL's query is left out: it may hold a secret."""
    fields = {"webhook": webhook.id, "name": webhook.name, "fan_out": webhook.has_fan_out}
    line = log.bind(queue=queue, url=webhook.url.partition("?")[0], **{name: it for name, it in fields.items() if it})
    if isinstance(target, str):
        line.error("webhook not served", reason=target)
        return
    secrets = "its own secrets" if webhook.secrets else "the worker's secrets"
    signed_by = secrets if target.signer else "nothing"
    line.info("webhook paused" if webhook.is_paused else "posting", signed_by=signed_by)


@define(eq=False)
class Registrations:
    """The webhooks of one queue as they were read last; nothing was read yet: None."""

    queue: str
    policy: Policy
    webhooks: list[Webhook] | None = None
    targets: dict[str, Target | str] = field(factory=dict, init=False)  # by id; a text says why none is posted

    @property
    def is_active(self) -> bool:
        """True if tasks are posted to any of them now."""
        return any(not webhook.is_paused for webhook in self.webhooks or ())

    def update(self, webhooks: list[Webhook]) -> None:
        """Serve these from now on, and log what has changed."""
        previous = {webhook.id: webhook for webhook in self.webhooks or ()}
        if not webhooks and self.webhooks != []:
            log.warning("no webhooks: `fairq webhooks add` registers one", queue=self.queue)
        for webhook in webhooks:
            if previous.pop(webhook.id, None) != webhook:
                self.targets[webhook.id] = self._target_of(webhook)
                log_webhook(self.queue, webhook, self.targets[webhook.id])
        for gone in previous.values():
            del self.targets[gone.id]
            log.info("webhook removed", queue=self.queue, webhook=gone.id)
        self.webhooks = webhooks

    def _target_of(self, webhook: Webhook) -> Target | str:
        try:
            return self.policy.target_of(webhook)
        except SettingsError as error:
            return error.message

    def find(self, task: Task) -> Target | Verdict:
        """Return where a task is posted to, or what becomes of it.

        For a task that no webhook takes, this attempt fails; that of a paused one, or one that this worker may not
        serve, does not count.
        """
        webhook = choose(self.webhooks or (), task.name, task.webhook)
        if webhook is None:
            return Verdict("retry", reason=self._why_none(task))
        target = self.targets[webhook.id]
        if not webhook.is_paused and isinstance(target, Target):
            return target
        reason = "is paused" if webhook.is_paused else f"is not served: {target}"
        delay = min(MAX_POSTPONE_S, POSTPONE_S * 2 ** min(task.attempt - 1, 10))
        return Verdict("postponed", reason=f"webhook {webhook.id} {reason}", delay=delay)

    def others(self, task: Task) -> list[str]:
        """Return the other webhooks with fan-out, by id, that take a task."""
        own = choose(self.webhooks or (), task.name, task.webhook)
        if own is None or task.webhook:  # a copy is not copied again
            return []
        return sorted(it.id for it in self.webhooks or () if it.has_fan_out and it is not own and it.takes(task.name))

    def _why_none(self, task: Task) -> str:
        if task.webhook:
            return f"webhook {task.webhook} was removed"
        named = f" named {task.name}" if task.name else " without a name"
        return f"queue {self.queue} has no webhook for tasks{named}"
