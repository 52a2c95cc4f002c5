"""Tests of the handlers of jobs.py, in memory and in virtual time: `pytest test_handlers.py`."""

import pytest
from jobs import app

import fairq
import fairq.testing

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_an_invoice_is_sent_at_the_second_attempt_and_noted(capsys: pytest.CaptureFixture[str]) -> None:
    async with fairq.testing.run(app) as service:
        task = await service.enqueue("invoices", {"to": "ada@example.com"}, delay=86_400)
        await service.drain()  # a day takes no time
    assert (task.outcome, task.attempts) == ("done", 2)
    assert isinstance(task.exceptions[0], fairq.Retry)
    assert capsys.readouterr().out == "sent to ada@example.com\n"


async def test_an_invoice_without_an_address_is_a_dead_letter() -> None:
    async with fairq.testing.run(app) as service:
        task = await service.enqueue("invoices", {"to": "ada"})
        await service.drain()
    assert (task.outcome, task.reason, task.error) == ("dead", "rejected", "ada is no address")
