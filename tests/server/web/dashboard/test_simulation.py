"""The Simulate page: what it shows of a queue with a history, and what it lacks without."""

from __future__ import annotations

from functools import partial
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest
import trio

from fairq.io.scopes import run_all
from fairq.model.checks import MAX_TENANT_CHARS
from fairq.model.simulation.comparison import Comparison
from fairq.model.simulation.observed import Observed
from fairq.model.simulation.setup import MAX_TENANTS, Proposal
from fairq.server.web.dashboard import simulation as module
from fairq.server.web.dashboard import site as site_module
from fairq.server.web.dashboard.simulation_process import compare_apart
from tests.server.harness import WORKER, raw, tenant
from tests.store.waiting import wait_until

from .harness import Raw, Site, busy, text_of


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, a simulation comes to its end."""
    monkeypatch.setattr(module, "DEADLINE_S", 80.0)
    monkeypatch.setattr(site_module, "_ANSWER_S", 80.0)


async def read(site: Site, status: int = 200, **query: str) -> str:
    """Read what comes when the page is there, as the page asks for it."""
    path = f"/simulate?{urlencode({'queue': 'q', **query})}"
    first = await site.browser.get(path)
    assert first.status_code in (status, 200)
    if first.status_code == 200:
        assert f'hx-get="/later{path}"' in unescape(first.text)
    return await site.read(f"/later{path}", status)


async def page(site: Site, status: int = 200, **query: str) -> str:
    """Read the page's text."""
    return text_of(await read(site, status, **query))


async def test_a_proposal_is_shown_beside_today(site: Site, worker: Raw) -> None:
    assert "Nothing to simulate yet" in await page(site)
    await site.served.app.recorder.flush()
    found = await page(site)
    assert "Nothing is changed" in found
    assert "ada" in found
    assert "Simulate again later:" in found
    html = await read(site, 200, **{"weight:ada": "4", "slots": "7"})
    assert 'name="weight:ada" aria-label="Weight of ada" placeholder="1" value="4"' in html
    assert 'name="slots" min="1" max="10000" value="7"' in html
    assert [each.weight for each in await site.store.tenants("q", ["ada"])] == [1.0]


async def test_a_form_of_all_its_tenants_may_be_sent_whatever_their_names(server_store: str) -> None:
    names = [f"{number:02}{'x' * (MAX_TENANT_CHARS - 2)}" for number in range(MAX_TENANTS)]
    form = {f"{name}:{tenant}": "" for tenant in names for name in ("weight", "max_running")}
    async with busy(server_store) as (site, _):
        query = {"queue": "q", "period": "1h", "slots": "", **form}
        referer = f"{site.browser.base_url}simulate?{urlencode(query)}"  # as of a browser that sends it again
        answer = await site.browser.get("/simulate", params=query, headers={"Referer": referer})
        assert answer.status_code == 200, text_of(answer.text)


async def test_without_workers_it_asks_for_how_many_slots(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.enqueue("q", ["t"])
        async with raw(site.served, WORKER) as worker:
            await worker.attach("q")
            await worker.settle("q", "ack", *await worker.pushed())
            await site.served.app.recorder.flush()

        async def is_asked() -> bool:
            return "No worker is attached" in await page(site)

        await wait_until(is_asked)
        assert "Nothing is changed" in await page(site, slots="3")


INVALID: list[tuple[dict[str, str], int, str]] = [
    ({"weight:ada": "0"}, 400, "weight must not be 0"), ({"weight:ada": "x"}, 400, "weight must be a number"),
    ({"max_running:ada": "1.5"}, 400, "max_running must be a whole number"),
    ({"slots": "0"}, 400, "slots must be"), ({"slots": "1e99"}, 400, "slots must be"),
    ({"slots": "nan"}, 400, "slots must be"), ({"weight:ada": "nan"}, 400, "weight must be"),
    ({"period": "2h"}, 400, "period must be one of"), ({"dead:ada": "1"}, 400, "cannot be simulated here"),
    ({"weight:none": "2"}, 404, "has no tenant none"), ({"queue": "none"}, 404, "there is no queue"),
]  # fmt: skip


async def test_invalid_proposals_are_reported_on_the_page(site: Site, worker: Raw) -> None:
    await site.served.app.recorder.flush()
    for query, status, said in INVALID:
        assert said in await page(site, status, **query)


async def test_a_queue_where_nothing_ran_says_so(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.enqueue("q", ["t"])
        await site.served.app.recorder.flush()
        assert "Nothing to simulate yet" in await page(site)


async def test_a_simulation_that_takes_too_long_is_given_up(
    site: Site, worker: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(observed: Observed, proposal: Proposal) -> Comparison:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(module, "compare_apart", compare)
    monkeypatch.setattr(module, "DEADLINE_S", 0.1)
    await site.served.app.recorder.flush()
    assert "too busy to simulate" in await page(site, 429)
    shown = await site.browser.get("/later/simulate?queue=q", headers={"HX-Request": "true"})
    assert (shown.status_code, "<html" in shown.text) == (200, False)
    assert "too busy to simulate" in shown.text


async def test_pages_that_ask_at_once_share_one_simulation(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[Observed]()

    async def compare(observed: Observed, proposal: Proposal) -> Comparison:
        begun.append(observed)
        return await compare_apart(observed, proposal)

    monkeypatch.setattr(module, "compare_apart", compare)
    async with busy(server_store) as (site, _):
        await site.served.app.recorder.flush()
        await run_all(*[partial(site.read, "/later/simulate?queue=q") for _ in range(20)])
        assert "Nothing is changed" in await page(site)
    assert len(begun) == 1


async def test_it_imports_nothing_from_the_working_directory(
    server_store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "orjson.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    async with busy(server_store) as (site, _):
        await site.served.app.recorder.flush()
        assert "Nothing is changed" in await page(site)
