"""An afternoon of an operator: two servers, a flood, a stuck handler, a poison task, a long payload, a killed store.

All workers are attached to the server B. What pages, commands and metrics of A say must be true of both.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from attrs import define, field

import fairq.sync
from tests import stores
from tests.cli.harness import fairq as run_fairq
from tests.server.web.admin.test_health import values
from tests.server.web.dashboard.harness import text_of
from tests.system.harness import Process, World, open_world

from .conftest import WAIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.deep("browser")

SLOTS = 8  # of the workers of queue mail
QUIET = ("globex", "initech", "umbrella")  # beside acme, that floods


@define(eq=False)
class Server:
    """A server process, and somebody who looks at its pages without a browser."""

    process: Process
    url: str = field(init=False)
    pages: httpx.Client = field(init=False)

    def __attrs_post_init__(self) -> None:
        serving = eventually(lambda: re.search(r".*serving.*", self.process.printed))[0]
        self.url = re.findall(r"ws://\S+", serving)[0]
        self.pages = httpx.Client(base_url=re.findall(r"admin=(\S+)", serving)[0], timeout=20)

    def read(self, path: str) -> str:
        """The text of a page."""
        answer = self.pages.get(path)
        assert answer.status_code == 200, (path, answer.text)
        return text_of(answer.text)

    def metric(self, *name: str) -> float:
        """A sample; not a number while there is none."""
        return values(self.pages.get("/metrics").text).get(name, math.nan)

    def wait_metric(self, least: float, *name: str) -> None:
        eventually(lambda: self.metric(*name) >= least)

    def wait_ready(self, status: int) -> None:
        eventually(lambda: self.pages.get("/readyz").status_code == status)

    def tell(self, *argv: str) -> str:
        """What a command says that asks this server."""
        done = run_fairq(*argv, "--url", self.url, "--token", "dev-operator")
        assert done.code == 0, done
        return done.out

    def act(self, tenant: str, do: Callable[[fairq.sync.Client], object]) -> None:
        """Do something as a tenant, in a thread: this one belongs to the browser's event loop."""

        def run() -> None:
            with fairq.sync.open_client(self.url, token=f"dev-tenant:{tenant}") as client:
                do(client)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result(60)

    def dies(self, tenant: str, queue: str, id: str) -> None:
        """Wait until a task is a dead letter."""
        eventually(lambda: "dead" in self.read(f"/queues/{queue}/tasks/{tenant}/{id}").split("Timeline")[0])


def eventually(look: Callable[[], Any], seconds: float = WAIT_MS / 1000) -> Any:
    """Wait until something is true; returns it."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


@pytest.fixture
def store(start_store: Callable[..., stores.LocalServer]) -> stores.LocalServer:
    return start_store({"appendfsync": "always"})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with open_world(tmp_path) as found:
        yield found


@pytest.fixture
def servers(world: World, store: stores.LocalServer) -> Iterator[list[Server]]:
    """The servers A and B."""
    processes = [world.serve("--admin-port", "0", "--store", store.url) for _ in "ab"]
    found = [Server(process) for process in processes]
    yield found
    for server in found:
        server.pages.close()


def chart_of(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate("JSON.parse(document.querySelector('#chart-data').dataset.chart)")
    return found


def check_whole(chart: dict[str, Any]) -> None:
    """Check that the parts of each moment add up to all."""
    for at, parts in enumerate(zip(*(each["delivered"] for each in chart["series"]), strict=True)):
        if any(part is not None for part in parts):
            assert sum(part or 0 for part in parts) == pytest.approx(1, abs=0.01), (at, chart)


def flood(a: Server, b: Server, page: Page) -> None:
    """A tenant floods, others come later: no page says that workers are missing, or hides the flood."""
    a.act("acme", lambda client: client.enqueue_many("mail", ["row"] * 3_000))
    for name in QUIET:
        a.act(name, lambda client: client.enqueue_many("mail", ["row"] * 200))
    page.goto("/?queue=mail")
    page.locator("#t-acme").wait_for()
    for server in (a, b):
        for path in ("/?queue=mail", "/queues", "/queues/mail", "/workers", "/queues/mail/tenants/acme"):
            assert "no worker" not in (text := server.read(path)).lower(), text
        assert f"/ {SLOTS} running / slots" in server.read("/queues/mail")
        server.wait_metric(SLOTS, "fairq_slots", "mail")
        server.wait_metric(2, "fairq_workers", "mail")
        assert (server.metric("fairq_slots", "mail"), server.metric("fairq_workers", "mail")) == (SLOTS, 2)
    eventually(lambda: a.metric("fairq_queue_tasks", "mail", "ready") == 0)
    eventually(lambda: "0 ready" in a.read("/?queue=mail"))
    for server in (a, b):
        text = server.read("/?queue=mail")
        for name in ("acme", *QUIET):
            found = re.search(rf" {name} 1 (?:[\d.]+%|–) ([\d.]+)% / ([\d.]+)% ", text)
            assert found, text[-900:]
            assert float(found[1]) == pytest.approx(float(found[2]), abs=3), found[0]
        assert "did not answer" not in text
    page.wait_for_function("() => document.querySelector('.figure b').textContent === '0'")
    chart = chart_of(page)
    assert {"acme", *QUIET} <= {each["tenant"] for each in chart["series"]}
    check_whole(chart)


def reports(a: Server, b: Server, page: Page) -> None:
    """Commands say the same at both servers: one share, however it is asked for."""
    listed, topped = [], []
    for server in (a, b):
        rows = {row["tenant"]: row for row in orjson.loads(server.tell("tenants", "list", "mail", "--json"))}
        report = orjson.loads(server.tell("tenants", "report", "mail", "acme", "--json"))
        assert report["starts"] > 100
        assert report["delivered"] == pytest.approx(rows["acme"]["delivered"], rel=0.05)
        listed.append({name: round(row["delivered"], 2) for name, row in rows.items()})
        topped.append(server.tell("top", "--once", "--queue", "mail"))
        assert re.search(r"acme .*% ", topped[-1]), topped[-1]
    assert listed[0] == listed[1]
    page.goto("/simulate?queue=mail")
    page.get_by_text("Nothing is changed").wait_for()


def stuck(a: Server, b: Server, imp: Process) -> None:
    """All pages name a worker with a blocked event loop, and the tasks that it holds."""
    for server in (a, b):
        server.wait_metric(1, "fairq_workers_silent", "imports")
    assert imp.process.poll() is None
    said = r"silent for \d+ s, holds 3 tasks"
    for server in (a, b):
        for path in ("/?queue=imports", "/queues/imports", "/workers", "/workers/imp-2"):
            assert re.search(said, text := server.read(path)), (path, text)
        assert server.read("/attempts?queue=imports").count("imp-2") == 3
        assert re.search(f"imp-2 {said}", server.tell("why", "imports", "acme/long-1"))
        assert re.search("imp-2.*silent", server.tell("workers", "list").replace("\n", " "))
        admin = str(server.pages.base_url)
        assert re.search(f"imp-2 {said}", server.tell("doctor", "--admin-url", admin))
    assert "worker is silent" in b.process.printed


def waits_for_nobody(a: Server, b: Server) -> None:
    """A backlog without workers has an age, and an alert that is true."""
    a.act("acme", lambda client: client.enqueue("later", 1))
    for server in (a, b):
        server.wait_metric(0.001, "fairq_oldest_ready_age_seconds", "later")
        assert "No worker takes tasks of later" in server.read("/queues/later")
        assert "no worker is attached" in server.tell("why", "later", id_of(server, "later"))


def id_of(server: Server, queue: str) -> str:
    """The id of a task that waits."""
    found = re.search(r"/queues/later/tasks/([^\"]+)", server.pages.get(f"/queues/{queue}/tenants/acme").text)
    assert found
    return found[1].replace("%2F", "/")


def dead_letters(a: Server, b: Server, page: Page) -> None:
    """A task that kills its process, and one with a long payload, end as dead letters; a page of 1 MB is sent once."""
    a.act("umbrella", lambda client: client.enqueue("mail", "die", id="poison"))
    a.act("acme", lambda client: client.enqueue("mail", "fail" + "x" * 1_000_000, id="long", max_attempts=1))
    a.dies("acme", "mail", "long")
    page.goto("/queues/mail/tasks/acme/long")
    page.get_by_text("no such mailbox").first.wait_for()
    page.evaluate("""() => {
        window.updates = 0;
        document.addEventListener("htmx:sse:after:message", () => window.updates++);
    }""")
    assert len(page.content()) < 60_000
    a.dies("umbrella", "mail", "poison")
    for server in (a, b):
        assert "died 3 times" in server.read("/queues/mail/tasks/umbrella/poison")
        assert "lease lost" in server.read("/dead?queue=mail")
    assert page.evaluate("window.updates") <= 1  # the first one may have come after that


def outage(a: Server, b: Server, store: stores.LocalServer, page: Page) -> None:
    """The store is killed and comes back: pages say so, the log does once, and work goes on."""
    page.goto("/queues/mail")
    page.locator("#live .figure").first.wait_for()
    store.kill()
    for server in (a, b):
        server.wait_ready(503)
    page.locator("#trouble").wait_for()
    store.start()
    for server in (a, b):
        server.wait_ready(200)
    page.locator("#trouble").wait_for(state="hidden")
    a.act("acme", lambda client: client.enqueue("mail", "row", id="after", result_ttl=600).result(timeout=60))
    assert b.process.printed.count("claim failed") <= 2, b.process.printed


def test_what_is_shown_of_an_afternoon_is_true_at_both_servers(
    world: World, store: stores.LocalServer, servers: list[Server], chromium: Browser
) -> None:
    a, b = servers
    a.tell("queues", "set", "imports", "lease_ms=600000")  # however slow this machine is, they are held till the end
    at = ("--token", "dev-worker", "--url", b.url)
    world.run("worker", "tests.browser.jobs:app", *at, "--processes", "2", "-c", str(SLOTS // 2))
    imp = world.run("worker", "tests.browser.jobs:imports", *at, "--name", "imp-2", "-c", "4")
    for id in ("long-1", "long-2"):
        a.act("acme", partial(fairq.sync.Client.enqueue, queue="imports", payload="long", id=id))
    eventually(lambda: a.metric("fairq_queue_tasks", "imports", "leased") == 2)
    a.act("globex", lambda client: client.enqueue("imports", "stuck"))
    page = chromium.new_page(base_url=str(a.pages.base_url))
    page.set_default_timeout(WAIT_MS)
    flood(a, b, page)
    reports(a, b, page)
    waits_for_nobody(a, b)
    dead_letters(a, b, page)
    stuck(a, b, imp)
    outage(a, b, store, page)
    page.context.close()
