"""The tasks of a Celery user do the same under fairq."""

from __future__ import annotations

import pytest

import fairq.sync
from tests.cli.harness import started

from . import fairq_after

pytestmark = pytest.mark.deep("frameworks")  # they need more packages: the extra `frameworks`


def test_celery_does_it_in_memory() -> None:
    from . import celery_before

    celery_before.app.conf.task_always_eager = True
    assert celery_before.buy("order-1", 1250).get() == "order-1: 12.50"


def test_fairq_does_it_on_a_server(shop: fairq.sync.Client, url: str) -> None:
    worker = {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"}
    with started("worker", "tests.frameworks.fairq_after:app", extra=worker):
        task = fairq_after.buy(shop, "order-1", 1250)
        assert fairq_after.buy(shop, "order-1", 1250).is_duplicate
        assert task.result(timeout=30) == {"order": "order-1", "cents": 1250}
        assert shop.wait_task("shop", "order-1-receipt", timeout=30)["result"] == "order-1: 12.50"
