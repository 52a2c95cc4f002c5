"""A server for a first try with queues that are at work, and Debian's Chromium."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import define, field

import fairq.sync
from tests.cli.harness import environment, read_until, started

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = os.environ.get("FAIRQ_CHROMIUM", "/usr/bin/chromium")
WAIT_MS = 60_000  # for what a page shall show; far longer than it takes
SIZES = {"desk": (1280, 860), "phone": (390, 844)}


@define
class Service:
    """A server process: its websocket, its dashboard, the directory of its store."""

    url: str
    pages: str
    data: Path
    process: subprocess.Popen[str] = field(repr=False)

    @contextmanager
    def worker(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """A worker process with four slots."""
        argv = [sys.executable, "-m", "fairq", "worker", "tests.browser.jobs:app", "--url", self.url, "-c", "4"]
        env = environment({"FAIRQ_TOKEN": "dev-worker"})
        process = subprocess.Popen(
            [*argv, "--name", name], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(30)

    def act(self, tenant: str, do: Callable[[fairq.sync.Client], object]) -> None:
        """Do something as a tenant, in a thread: this one belongs to the browser's event loop."""

        def run() -> None:
            with fairq.sync.open_client(self.url, token=f"dev-tenant:{tenant}") as client:
                do(client)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result(60)


@contextmanager
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    from playwright.sync_api import sync_playwright

    assert Path(CHROMIUM).exists(), f"{CHROMIUM} is missing: apt-get install chromium, or set FAIRQ_CHROMIUM"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def served(data: Path) -> Iterator[Service]:
    """A server with a store of its own."""
    flags = ("--dev", "--port", "0", "--admin-port", "0", "--data-dir", data / "data")
    with started("serve", *flags) as process:
        line = read_until(process, "serving")
        yield Service(re.findall(r"ws://\S+", line)[0], re.findall(r"admin=(\S+)", line)[0], data, process)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A server of its own."""
    with served(tmp_path) as found:
        yield found


@define
class Watcher:
    """What went wrong on pages: messages of the console, requests to other hosts, answers that are errors."""

    allowed: str
    faults: list[str] = field(factory=list)
    expects_trouble: bool = False

    def watch(self, page: Page) -> None:
        """Note what goes wrong on a page."""
        page.on("console", lambda message: self._note("console", message.text, message.type in ("error", "warning")))
        page.on("pageerror", lambda error: self._note("script", str(error), True))
        page.on("request", lambda asked: self._note("request", asked.url, not asked.url.startswith(self.allowed)))
        page.on("response", lambda found: self._note(str(found.status), found.url, found.status >= 400))

    def _note(self, what: str, text: str, is_fault: bool) -> None:
        if is_fault and not self.expects_trouble:
            self.faults.append(f"{what}: {text}")


@pytest.fixture
def watcher(service: Service) -> Iterator[Watcher]:
    """Fails the test if anything went wrong on its pages."""
    found = Watcher(service.pages)
    yield found
    assert not found.faults


@pytest.fixture
def page(chromium: Browser, service: Service, watcher: Watcher) -> Iterator[Page]:
    """A tab of a desk."""
    with open_tab(chromium, service, watcher) as tab:
        yield tab


@contextmanager
def open_tab(
    chromium: Browser, service: Service, watcher: Watcher, size: str = "desk", scheme: Any = "light"
) -> Iterator[Page]:
    width, height = SIZES[size]
    context = chromium.new_context(
        base_url=service.pages, viewport={"width": width, "height": height}, color_scheme=scheme
    )
    context.set_default_timeout(WAIT_MS)
    tab = context.new_page()
    watcher.watch(tab)
    yield tab
    context.close()
