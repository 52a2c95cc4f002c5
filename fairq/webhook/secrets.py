"""Reads secrets from a variable or a file; never from the command line, which other users can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairq.errors import SettingsError
from fairq.webhook.signature import Signer

VARIABLE = "FAIRQ_WEBHOOK_SECRET"


def load_signer(path: Path | None, environment: Mapping[str, str], *, is_per_tenant: bool) -> Signer | None:
    """Read the secrets in a file, or else in the variable, newest first; None if the variable is empty too.

    Raises: SettingsError for an unreadable or empty file, and for an invalid secret.
    """
    if path is None:
        texts = environment.get(VARIABLE, "").split()
        return Signer.parse(texts, is_per_tenant=is_per_tenant) if texts else None
    try:
        texts = path.read_text(encoding="utf-8").split()
    except OSError as error:
        raise SettingsError(f"secret_file {path}: {error.strerror}", field="secret_file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"secret_file {path} is not text", field="secret_file") from None
    if not texts:
        raise SettingsError(f"secret_file {path} is empty", field="secret_file")
    return Signer.parse(texts, is_per_tenant=is_per_tenant)
