"""fairq.django with Postgres, as processes: a restart under load, and relays beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fairq.sync
from tests.cli.harness import python, read_until, started
from tests.postgres import Postgres, running
from tests.store.waiting import wait_for

pytestmark = pytest.mark.deep("frameworks")  # they need more packages and Postgres

WAIT_S = 200


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A Postgres with the shop's tables."""
    with running() as found:
        done = python("-m", "django", "migrate", "--run-syncdb", env=variables(found))
        assert done.code == 0, done
        yield found


def variables(postgres: Postgres) -> dict[str, str]:
    """The project's variables."""
    return {"SHOP_DATABASE": str(postgres.folder), "DJANGO_SETTINGS_MODULE": "tests.frameworks.shop.settings"}


def ask(postgres: Postgres, query: str, *values: Any) -> list[tuple[Any, ...]]:
    """Ask the database."""
    import psycopg

    with psycopg.connect(host=str(postgres.folder), user="postgres", dbname="postgres", autocommit=True) as connection:
        cursor = connection.execute(query, values)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.timeout(2 * WAIT_S)
def test_a_worker_survives_restarts_under_load(shop: fairq.sync.Client, postgres: Postgres, url: str) -> None:
    numbers = [f"restart-{n}" for n in range(400)]
    ask(postgres, "INSERT INTO shop_order (number, done) SELECT unnest(%s::text[]), 0", numbers)
    worker = variables(postgres) | {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"}
    payloads = [{"order": number, "seconds": 0.02} for number in numbers]
    with started("fairq_worker", "-c", "8", extra=worker, module="django") as process:
        read_until(process, "connected")
        shop.enqueue_many("orders", payloads, ids=numbers, max_attempts=20)
        done = "SELECT count(*) FROM shop_order WHERE done > 0 AND number LIKE 'restart-%%'"
        for mode, least in (("fast", 50), ("immediate", 150)):
            wait_for(lambda least=least: ask(postgres, done)[0][0] >= least, WAIT_S)  # type: ignore[misc]
            postgres.do("restart", "-m", mode)
        wait_for(lambda: ask(postgres, done) == [(len(numbers),)], WAIT_S)
    states = [task.state for task in shop.tasks("orders", numbers)]
    assert "dead" not in states


@pytest.mark.timeout(2 * WAIT_S)
def test_relays_beside_each_other_send_each_row_once_through_a_restart_and_a_kill(
    shop: fairq.sync.Client, postgres: Postgres, url: str
) -> None:
    insert = """
        INSERT INTO fairq_outbox (queue, task_id, payload, options, send_at, refusals, error)
        SELECT 'relayed', 'row-' || n, n::text, '{}', now(), 0, '' FROM generate_series(%s::int, %s::int) AS n
    """
    relay = variables(postgres) | {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-tenant:shop"}
    with ExitStack() as stack:
        first, second = [
            stack.enter_context(started("fairq_relay", "--interval", "0.05", extra=relay, module="django"))
            for _ in range(2)
        ]
        for process in (first, second):
            read_until(process, "started")
        ask(postgres, insert, 1, 3_000)
        first.kill()
        postgres.do("restart", "-m", "fast")
        ask(postgres, insert, 3_001, 4_000)
        wait_for(lambda: ask(postgres, "SELECT count(*) FROM fairq_outbox") == [(0,)], WAIT_S)
    assert shop.cancel_all("relayed") == 4_000
