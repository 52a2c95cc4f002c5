"""Signatures of webhooks, for senders and receivers, by the Standard Webhooks specification.

The signed text is `<webhook-id>.<webhook-timestamp>.<body>`; the first two never contain a full stop. There is one
signature per secret, so that a secret can be replaced while both are valid. A tenant that knows the secret of another
tenant's webhooks could forge them. So tenants with URLs of their own get secrets of their own, each derived from the
worker's.
"""

from __future__ import annotations

import hmac
import re
import time
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from fairq.errors import FairqError, SettingsError
from fairq.model.webhooks import SECRET_PREFIX, secret_in

TOLERANCE_S = 300.0
_TENANT_LABEL = b"fairq webhook secret of tenant "
_TIMESTAMP = re.compile(r"[0-9]{1,12}\Z")


class BadSignature(FairqError):
    """The signature is wrong, or the timestamp is too far from now; `field` names the header."""

    code = "bad_signature"


def read_secret(text: str) -> bytes:
    """Read a secret: `whsec_` and base64. Raises: SettingsError, without the secret in the message."""
    if secret := secret_in(text):
        return secret
    message = f"invalid webhook secret: expected {SECRET_PREFIX}, then 24 to 64 bytes in base64"
    raise SettingsError(message, field="secret")


def write_secret(secret: bytes) -> str:
    """Write a secret as text: `whsec_` and base64."""
    return SECRET_PREFIX + b64encode(secret).decode()


def tenant_secret(secret: bytes, tenant: str) -> bytes:
    """Derive a tenant's secret."""
    return hmac.digest(secret, _TENANT_LABEL + tenant.encode(), "sha256")


def _sign(secret: bytes, id: str, timestamp: str, body: bytes) -> str:
    content = f"{id}.{timestamp}.".encode() + body
    return "v1," + b64encode(hmac.digest(secret, content, "sha256")).decode()


@frozen
class Signer:
    """Signs requests with each of its secrets."""

    secrets: tuple[bytes, ...] = field(repr=False)
    is_per_tenant: bool = False

    @classmethod
    def parse(cls, texts: Iterable[str], *, is_per_tenant: bool = False) -> Signer:
        """Read secrets, the newest first. Raises: SettingsError."""
        return cls(tuple(map(read_secret, texts)), is_per_tenant)

    def secrets_of(self, tenant: str) -> tuple[bytes, ...]:
        """Return the secrets of a tenant's receiver."""
        if not self.is_per_tenant:
            return self.secrets
        return tuple(tenant_secret(secret, tenant) for secret in self.secrets)

    def signature(self, tenant: str, id: str, timestamp: str, body: bytes) -> str:
        """Return the value of the header `webhook-signature`."""
        return " ".join(_sign(secret, id, timestamp, body) for secret in self.secrets_of(tenant))


def verify(
    body: bytes,
    headers: Mapping[str, str],
    secrets: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE_S,
    now: float | None = None,
) -> str:
    """Check that a request was signed with one of the secrets, within `tolerance` (s) of now; returns its id.

    `body` is the request's, byte for byte. The id is the same for all attempts of a task: a receiver that keeps ids for
    a while can detect repetitions. A wrong signature takes as long to check as a right one.
    Raises: BadSignature; SettingsError for an invalid secret.
    """
    known = [read_secret(text) for text in ([secrets] if isinstance(secrets, str) else secrets)]
    if not known:
        raise SettingsError("secrets must contain at least 1 secret", field="secrets")
    given = {name.lower(): value for name, value in headers.items()}
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        if not given.get(name):
            raise BadSignature(f"missing header {name}", field=name)
    id, timestamp = given["webhook-id"], given["webhook-timestamp"]
    if not _TIMESTAMP.match(timestamp):
        raise BadSignature("webhook-timestamp must be whole seconds", field="webhook-timestamp")
    if abs((time.time() if now is None else now) - int(timestamp)) > tolerance:
        raise BadSignature("webhook-timestamp is too far from now", field="webhook-timestamp")
    signatures = [text.encode() for text in given["webhook-signature"].split()]
    expected = [_sign(secret, id, timestamp, body).encode() for secret in known]
    matches = [hmac.compare_digest(right, one) for right in expected for one in signatures]
    if not any(matches):
        raise BadSignature("no signature matches", field="webhook-signature")
    return id
