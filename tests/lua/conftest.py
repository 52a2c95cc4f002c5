"""The queue under test."""

from __future__ import annotations

import pytest
import redis

from .calls import Queue


@pytest.fixture
def queue(redis_client: redis.Redis) -> Queue:
    """A queue on an empty store, with a clock and random_values that the test owns."""
    return Queue(redis_client)
