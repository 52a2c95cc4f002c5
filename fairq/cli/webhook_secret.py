"""`fairq webhook-secret`: the secrets by which receivers verify webhooks."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from fairq.errors import SettingsError
from fairq.model.checks import check_tenant
from fairq.webhook.secrets import VARIABLE, load_signer
from fairq.webhook.signature import write_secret

NEW_BYTES = 32


def webhook_secret(tenant: str | None = None, /, *, secret_file: Path | None = None) -> None:
    """Print a new secret for a webhook worker; with a tenant, print that tenant's secrets.

    Example: `fairq webhook-secret acme`

    Parameters
    ----------
    tenant
        Tenant with a URL of its own ({tenant}); its secrets are derived from the worker's, one per line.
    secret_file
        File with the worker's secrets (default: the variable FAIRQ_WEBHOOK_SECRET).
    """
    if tenant is None:
        print(write_secret(secrets.token_bytes(NEW_BYTES)))
        return
    signer = load_signer(secret_file, os.environ, is_per_tenant=True)
    if signer is None:
        raise SettingsError(f"missing secret of the worker: set {VARIABLE} or --secret-file", field="secret")
    for secret in signer.secrets_of(check_tenant(tenant)):
        print(write_secret(secret))
