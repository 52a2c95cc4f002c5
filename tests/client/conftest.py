"""The client's tests run against a real server."""

from __future__ import annotations

from tests.server.conftest import certificate, plain_logs, served, server_store

__all__ = ["certificate", "plain_logs", "served", "server_store"]
