"""The defaults of URL and token: the variables FAIRQ_URL and FAIRQ_TOKEN."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fairq.errors import SettingsError

DEFAULT_URL = "ws://127.0.0.1:7700"


def choose_urls(urls: str | Sequence[str] | None) -> Sequence[str]:
    """Return the given URLs, or (None) the ones in FAIRQ_URL; a text may have several, with commas.

    Raises: SettingsError if there is none.
    """
    if urls is None:
        urls = os.environ.get("FAIRQ_URL") or DEFAULT_URL
    if isinstance(urls, str):
        urls = [one.strip() for one in urls.split(",") if one.strip()]
    if not urls:
        raise SettingsError("give the URL of at least one server", field="url")
    return urls


def choose_token(token: str | None) -> str:
    """Return the given token, or (None) the one in FAIRQ_TOKEN. Raises: SettingsError if there is none."""
    chosen = os.environ.get("FAIRQ_TOKEN") if token is None else token
    if chosen is None:
        raise SettingsError(
            "missing token: give token=, or set FAIRQ_TOKEN (`fairq tokens create` makes one)", field="token"
        )
    return chosen
