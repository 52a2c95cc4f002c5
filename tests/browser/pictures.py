"""Draw the screenshots of README and guides: `python -m tests.browser.pictures DIRECTORY`.

Three tenants; one floods; a weight that is changed; a dead letter. The pages are those of a real server.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import fairq.sync
from tests.browser.conftest import Service, browser, served

PICTURES = {
    "fairness": ("/", 1280, 730),
    "task": ("/queues/mail/tasks/acme/order-17", 1120, 380),
    "audit": ("/audit", 1120, 330),
}


def fill(client: fairq.sync.Client) -> None:
    """Give a tenant a task that fails, a flood, and a task that waits behind it."""
    client.enqueue("mail", "fail", id="dies", max_attempts=1, priority=9, events=True)
    for _ in range(20):
        client.enqueue_many("mail", ["row"] * 1_000)
    client.enqueue("mail", "row", id="order-17")


def draw(service: Service, directory: Path) -> None:
    for tenant, count in (("globex", 9), ("initech", 6)):
        for _ in range(count):
            service.act(tenant, lambda client: client.enqueue_many("mail", ["row"] * 1_000))
    service.act("acme", fill)
    with service.worker("w1"), service.worker("w2"), browser() as chromium:
        tab = chromium.new_page(base_url=service.pages, color_scheme="light")
        tab.goto("/")
        tab.wait_for_timeout(25_000)
        tab.locator("#t-globex button.value").click()
        tab.locator("dialog [name=weight]").fill("2")
        tab.keyboard.press("Enter")
        tab.wait_for_timeout(25_000)
        for name, (path, width, height) in PICTURES.items():
            tab.set_viewport_size({"width": width, "height": height})
            if path != "/":
                tab.goto(path)
            tab.wait_for_timeout(1_500)
            tab.screenshot(path=directory / f"{name}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data, served(Path(data)) as running:
        draw(running, Path(sys.argv[1]))
