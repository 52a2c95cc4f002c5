"""The OpenAPI document."""

from typing import Any


def make_document() -> dict[str, Any]:
    """Make it."""
    return {}
