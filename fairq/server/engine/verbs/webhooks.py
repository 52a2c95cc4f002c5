"""The verbs on webhooks."""

from __future__ import annotations

from attrs import asdict

from fairq.errors import NotFound, TooLarge
from fairq.model.webhooks import MAX_FAN_OUTS, MAX_WEBHOOKS, webhook_id
from fairq.server.engine.app import App
from fairq.server.engine.net.connection import Connection
from fairq.server.engine.verbs.request_scope import Body
from fairq.wire import messages as wire
from fairq.wire import terms

_TOO_MANY = {
    "url": f"a queue has at most {MAX_WEBHOOKS} webhooks",
    "fan_out": f"a queue has at most {MAX_FAN_OUTS} webhooks with fan-out",
}


async def add_webhook(app: App, connection: Connection, request: wire.AddWebhook) -> Body:
    """Register or change a webhook."""
    queue, url, name = request.queue, request.url, request.name
    has_fan_out, secrets = request.has_fan_out, request.secrets
    try:
        outcome = await app.store.add_webhook(queue, url, name, has_fan_out=has_fan_out, secrets=secrets)
    except TooLarge as error:
        raise TooLarge(_TOO_MANY[error.field or "url"], field=error.field) from None
    return {"id": webhook_id(url, name), "outcome": outcome}


async def remove_webhook(app: App, connection: Connection, request: wire.RemoveWebhook) -> Body:
    """Forget a webhook."""
    queue, url, name = request.queue, request.url, request.name
    return {"previous": await app.store.remove_webhook(queue, webhook_id(url, name))}


async def set_paused(app: App, connection: Connection, request: wire.SetWebhookPaused) -> Body:
    """Post no tasks to a webhook, or post them again."""
    queue, url, name = request.queue, request.url, request.name
    previous = await app.store.pause_webhook(queue, webhook_id(url, name), is_paused=request.paused)
    if previous is None:
        of = f" for tasks named {name}" if name else ""
        raise NotFound(f"queue {queue} has no webhook {url}{of}", field="url")
    return {"previous": previous}


async def webhooks(app: App, connection: Connection, request: wire.Webhooks) -> Body:
    """List webhooks; only workers, which sign requests, get the secrets."""
    found = await app.store.webhooks(request.queue)
    is_worker = connection.identity.role is terms.Role.WORKER
    return {
        "webhooks": [asdict(webhook, filter=lambda field, _: is_worker or field.name != "secrets") for webhook in found]
    }
