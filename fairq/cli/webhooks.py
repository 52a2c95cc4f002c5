"""`fairq webhooks`: the URLs that tasks of a queue are posted to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from attrs import asdict
from cyclopts import App, Parameter

from fairq.cli.options import Json, Server, run_with
from fairq.cli.output import print_rows
from fairq.errors import NotFound

if TYPE_CHECKING:
    from fairq.model.webhooks import Webhook

webhooks = App(name="webhooks", help="Register, list, pause, resume and remove webhooks of a queue.")

Name = Annotated[str, Parameter(help="Only tasks of this name, as enqueued with `--name` (default: all tasks).")]
_COLUMNS = {"id": "id", "url": "url", "name": "tasks", "fan_out": "copies", "secrets": "secrets", "is_paused": "paused"}
_NOT_PRINTED = ("secrets",)  # operators cannot read them


@webhooks.command
def add(
    queue: str,
    url: str,
    /,
    *,
    name: Name = "",
    secret_file: Path | None = None,
    fan_out: Annotated[bool, Parameter(negative=())] = False,
    server: Server | None = None,
) -> None:
    """Register a webhook, or change the one with this URL and name; running webhook workers use it within a second.

    Example: `fairq webhooks add emails https://example.com/tasks --name welcome`

    Parameters
    ----------
    queue
        Queue of the tasks that are posted (by `fairq webhook-worker QUEUE`).
    url
        URL to post to; {tenant} in it stands for the tenant's name.
    secret_file
        File of the secrets that sign its requests, the newest first (default: the webhook worker's own secrets).
    fan_out
        Copy each task for this webhook when it is taken, so that several webhooks get it, each retried apart. A copy
        counts in the tenant's share and quotas; its id begins with the task's, a plus sign and the webhook's id.
    """
    from fairq.webhook.secrets import load_signer
    from fairq.webhook.signature import write_secret
    from fairq.webhook.urls import UrlTemplate

    UrlTemplate.parse(url, plaintext=True)
    signer = load_signer(secret_file, os.environ, is_per_tenant=False) if secret_file else None
    secrets = [write_secret(secret) for secret in signer.secrets] if signer else []

    outcome = run_with(
        server, lambda client: client.add_webhook(queue, url, name=name, fan_out=fan_out, secrets=secrets)
    )
    print(f"{url} in {queue}: {'unchanged' if outcome == 'same' else outcome}")


@webhooks.command(name="list")
def list_(queue: str, /, *, json: Json = False, server: Server | None = None) -> None:
    """List the webhooks of a queue, the oldest first; their secrets are not shown.

    Example: `fairq webhooks list emails`
    """

    found = run_with(server, lambda client: client.webhooks(queue))
    rows = [
        asdict(one, filter=lambda field, _: field.name not in _NOT_PRINTED) if json else _cells(one) for one in found
    ]
    print_rows(f"webhooks of {queue}", _COLUMNS, rows, empty=f"queue {queue} has no webhooks", json=json)


def _cells(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "url": webhook.url,
        "name": webhook.name or "all",
        "fan_out": webhook.has_fan_out,
        "secrets": webhook.secret_count or "worker's",
        "is_paused": webhook.is_paused,
    }


@webhooks.command
def remove(queue: str, url: str, /, *, name: Name = "", server: Server | None = None) -> None:
    """Remove a webhook. Its waiting copies fail until they are dead letters, which can be replayed.

    Example: `fairq webhooks remove emails https://example.com/tasks`
    """
    if not run_with(server, lambda client: client.remove_webhook(queue, url, name=name)):
        raise NotFound(f"queue {queue} has no webhook {url}{f' for tasks named {name}' if name else ''}", field="url")
    print(f"{url} in {queue}: removed")


@webhooks.command
def pause(queue: str, url: str, /, *, name: Name = "", server: Server | None = None) -> None:
    """Let the tasks of a webhook wait; this costs them no attempts.

    Example: `fairq webhooks pause emails https://example.com/tasks`
    """
    run_with(server, lambda client: client.pause_webhook(queue, url, name=name))
    print(f"{url} in {queue}: paused")


@webhooks.command
def resume(queue: str, url: str, /, *, name: Name = "", server: Server | None = None) -> None:
    """Post the tasks of a webhook again. In a queue with other webhooks, some start up to ten minutes later.

    Example: `fairq webhooks resume emails https://example.com/tasks`
    """
    run_with(server, lambda client: client.resume_webhook(queue, url, name=name))
    print(f"{url} in {queue}: resumed")
