"""Webhooks: the URLs to which a queue's tasks are posted, and which of them get a task."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from hashlib import sha256

from attrs import evolve, field, frozen

from fairq.errors import BadRequest, TooLarge
from fairq.model.checks import COPY_MARK
from fairq.model.rules import many, matching

MAX_WEBHOOKS, MAX_FAN_OUTS = 64, 15  # of a queue; the latter: with fan-out (lua/features/webhooks.lua)
MAX_URL_CHARS = 1_000
MAX_SECRETS = 4  # of a webhook: two while one replaces the other
URL = matching(
    re.compile(rf"https?://[!-~]{{1,{MAX_URL_CHARS - 8}}}\Z"),  # its parts are the worker's business
    f"an https:// URL of at most {MAX_URL_CHARS} characters",
    *("", "https://", "ftp://a.example/", "https://a b/", "https://é.example/", "https://a.example/\n"),
    *("https://a.example/".ljust(MAX_URL_CHARS + 1, "u"), "HTTPS://a.example/"),
    is_secret=True,
)
SECRET_PREFIX, _SECRET_BYTES = "whsec_", range(24, 65)


@frozen
class Webhook:
    """A URL that tasks of one name (empty: of any) are posted to; with fan-out, a copy of each.

    `secrets` sign the requests, the newest first; without any, the worker's secrets do. Only workers can read them;
    `secret_count` says how many there are.
    """

    id: str
    url: str
    name: str = ""
    has_fan_out: bool = False
    is_paused: bool = False
    created_at_ms: int = 0
    secret_count: int = 0
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def takes(self, name: str) -> bool:
        """True if tasks of a name are posted to it."""
        return self.name in ("", name)


def webhook_id(url: str, name: str) -> str:
    """Return the id of the webhook with this URL and name: eight hexadecimal digits, the same in every queue."""
    return sha256(f"{url}\n{name}".encode()).hexdigest()[:8]


def copy_id(id: str, webhook: str, enqueued_at_ms: int) -> str:
    """Return the id of a task's copy for a webhook, the same in each attempt (lua/tasks/records.lua reads it too)."""
    return f"{id}{COPY_MARK}{webhook}-{enqueued_at_ms}"


def read_copy_id(id: str) -> tuple[str, str, int]:
    """Return a copied task's id, the webhook that the copy is for, and when the task was enqueued (ms).

    Of a task that is no copy: its own id, an empty text and 0.
    """
    tenant, slash, own = id.rpartition("/")
    original, _, rest = own.partition(COPY_MARK)
    webhook, _, enqueued_at_ms = rest.partition("-")
    return tenant + slash + original, webhook, int(enqueued_at_ms or 0)


def webhook_in(id: str) -> str:
    """Return the webhook that a task is for: if it is a copy, that in its id; else an empty text."""
    return read_copy_id(id)[1] if COPY_MARK in id else ""


def choose(webhooks: Iterable[Webhook], name: str, id: str) -> Webhook | None:
    """Return the webhook that a task is posted to, or None.

    `id`: the webhook that it is for, empty where that was left open. Then one without fan-out goes before one with it,
    one for its name before one for any, and the older before the younger.
    """
    if id:
        return next((webhook for webhook in webhooks if webhook.id == id), None)
    taking = [webhook for webhook in webhooks if webhook.takes(name)]
    return min(taking, key=lambda it: (it.has_fan_out, not it.name, it.created_at_ms, it.id), default=None)


def secret_in(text: str) -> bytes:
    """Return the secret in a text: base64 of 24 to 64 bytes, with `whsec_` or without; empty if it is invalid."""
    try:
        secret = b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        return b""
    return secret if len(secret) in _SECRET_BYTES else b""


def _check_secrets(values: Sequence[object], field: str) -> Sequence[object]:
    if len(values) > MAX_SECRETS:
        raise TooLarge(f"a webhook has at most {MAX_SECRETS} secrets", field=field)
    if not all(isinstance(value, str) and value.startswith(SECRET_PREFIX) and secret_in(value) for value in values):
        raise BadRequest("a secret must be whsec_, then 24 to 64 bytes in base64", field=field)
    return values


_SECRET = matching(re.compile(r"whsec_[A-Za-z0-9+/]{32,88}={0,2}\Z"), "a secret", is_secret=True)
SECRETS = evolve(many(_SECRET, 0, MAX_SECRETS), check=_check_secrets)  # what matches may be no base64
