"""For users' tests: an app's handlers, run in memory and in virtual time, without a server."""

from __future__ import annotations

from fairq.testing.service import MemoryClient, MemoryService, TrackedTask, run

__all__ = ["MemoryClient", "MemoryService", "TrackedTask", "run"]
