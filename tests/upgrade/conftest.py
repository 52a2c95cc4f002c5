"""Processes that end with their test, as of tests/system."""

from __future__ import annotations

from tests.system.conftest import durable_store, plain_logs, world

__all__ = ["durable_store", "plain_logs", "world"]
