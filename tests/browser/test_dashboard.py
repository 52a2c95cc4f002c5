"""What operators do in a browser: see who gets what, change it, see the effect, and mend what failed."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

import fairq.sync
from tests.store.test_embedded import store_pid

from .conftest import SIZES, Service, Watcher, open_tab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.deep("browser")  # they need Chromium, and the extra `browser`

NO_ANSWER = re.compile("has not answered|no answer")  # of the store


def fill(service: Service, *tenants: str, tasks: int = 8_000) -> None:
    """Give tenants a backlog."""
    for name in tenants:
        for _ in range(tasks // 1_000):
            service.act(name, lambda client: client.enqueue_many("mail", ["row"] * 1_000))


def part_of(page: Page, tenant: str, column: str = "td.wide .n") -> float:
    """The percentage that the Fairness page shows of a tenant."""
    return float(page.locator(f"#t-{tenant} {column}").inner_text().rstrip("%"))


def wait_for(page: Page, script: str, arg: Any = None) -> None:
    """Wait until a function in the page returns true."""
    page.wait_for_function(script, arg=arg)


def test_a_weight_is_changed_and_the_share_moves(page: Page, service: Service) -> None:
    fill(service, "acme", "globex")
    with service.worker("w1"):
        page.goto("/")
        shows = """([tenant, low, high]) => {
            const cell = document.querySelector(`#t-${tenant} td.wide .n`);
            return cell && low <= parseFloat(cell.textContent) && parseFloat(cell.textContent) <= high;
        }"""
        wait_for(page, shows, ["globex", 45, 55])
        page.locator("#t-globex button.value").click()
        page.locator("dialog [name=weight]").fill("4")
        page.keyboard.press("Enter")
        page.locator("#notes p").wait_for()
        assert page.locator("#notes p").inner_text() == "Weight of globex: 1 → 4"
        began = time.monotonic()
        wait_for(page, shows, ["globex", 56, 100])  # it moves
        moved_after = time.monotonic() - began
        wait_for(page, shows, ["globex", 70, 90])  # and settles at 80 %
        assert page.locator("#t-globex button.value").inner_text() == "4"
        marks = page.evaluate("JSON.parse(document.querySelector('#chart-data').dataset.chart).marks")
        assert [mark["text"] for mark in marks] == ["globex 1 → 4"]
        assert page.locator("#chart canvas").count() == 1
        print(f"the share moved {moved_after:.1f} s after the change was shown")


def test_why_a_task_waits_is_found_and_mended(page: Page, service: Service) -> None:
    service.act("acme", lambda client: client.enqueue("mail", "row", id="stuck"))
    page.goto("/")
    page.get_by_text("No worker takes tasks of mail").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("acme/stuck")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="acme/stuck").click()
    page.get_by_text("no worker is attached to the queue").wait_for()
    page.goto("/queues/mail/tenants/acme")
    page.get_by_role("button", name="Pause").click()
    page.locator("dialog").get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Resume").wait_for()
    page.goto("/queues/mail/tasks/acme/stuck")
    page.get_by_text("its tenant is paused until an operator resumes it").wait_for()
    with service.worker("w1"):
        page.goto("/queues/mail/tenants/acme")
        page.get_by_role("button", name="Resume").click()
        page.locator("dialog").get_by_role("button", name="Resume").click()
        page.goto("/queues/mail/tasks/acme/stuck")
        page.locator(".timeline .now b", has_text="done").wait_for()


def test_dead_letters_are_replayed(page: Page, service: Service) -> None:
    service.act("acme", lambda client: client.enqueue_many("mail", ["fail"] * 5, max_attempts=1))
    with service.worker("w1"):
        page.goto("/queues/mail")
        page.locator(".figure", has_text="5dead letters").wait_for()
        page.goto("/dead")
        assert page.locator("td.error", has_text="no such mailbox").count() == 5
        chosen = page.get_by_role("button", name="Replay the chosen")
        assert chosen.is_disabled()
        page.locator("[name=ids]").nth(0).check()
        page.locator("[name=ids]").nth(1).check()
        chosen.click()
        page.get_by_text("Replay 2 chosen dead letters of queue mail").wait_for()
        page.locator("dialog").get_by_role("button", name="Replay").click()
        page.locator("#notes", has_text="2 of 2 dead letters replayed").wait_for()
        page.goto("/dead")
        page.get_by_role("button", name=re.compile("Replay all")).click()
        page.locator("dialog p", has_text="dead letters of queue mail: all of them").wait_for()
        page.keyboard.press("Escape")
        assert not page.locator("dialog").is_visible()


def test_an_operator_signs_in_and_out_with_the_keyboard(page: Page, service: Service, watcher: Watcher) -> None:
    page.goto("/tokens")
    page.get_by_role("button", name="New token").click()
    page.locator("dialog [name=role]").select_option("operator")
    page.locator("dialog [name=label]").fill("night shift")
    page.locator("dialog").get_by_role("button", name="Create").click()
    token = page.locator("#notes p").inner_text().rpartition(" ")[2]
    page.context.clear_cookies()
    page.goto("/sign-in?next=/audit")
    page.locator("[name=token]").fill(token)
    page.keyboard.press("Enter")
    page.locator("h1", has_text="Audit").wait_for()
    page.wait_for_load_state()  # keys go to the page's script, which runs after its text is there
    assert "night shift" in page.locator(".who").inner_text()
    assert page.locator("td", has_text="create token").count() == 1
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.locator("h1", has_text="Queues").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.locator("h1", has_text="Sign in").wait_for()
    watcher.expects_trouble = True
    page.locator("[name=token]").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").filter(has_text="unknown token").wait_for()


def test_a_store_that_stops_is_reported_on_the_page(page: Page, service: Service, watcher: Watcher) -> None:
    fill(service, "acme", tasks=1_000)
    page.goto("/system")
    page.get_by_text("store round trip").wait_for()
    store = store_pid(service.data / "data")
    watcher.expects_trouble = True
    os.kill(store, signal.SIGSTOP)
    try:
        page.locator("#trouble", has_text=NO_ANSWER).or_(page.get_by_text("Not ready:")).first.wait_for()
    finally:
        os.kill(store, signal.SIGCONT)
    page.locator("#trouble").wait_for(state="hidden")
    page.get_by_text("store round trip").wait_for()


def test_a_page_whose_stream_cannot_begin_says_so_and_keeps_asking(
    page: Page, service: Service, watcher: Watcher
) -> None:
    watcher.expects_trouble = True
    service.act("acme", lambda client: client.enqueue("mail", "row"))
    store, asked = store_pid(service.data / "data"), list[str]()

    def stop_first(route: Route) -> None:
        if not asked:
            os.kill(store, signal.SIGSTOP)
        asked.append(route.request.url)
        route.continue_()

    page.route("**/live/**", stop_first)
    page.goto("/queues")
    try:
        page.locator("#trouble", has_text=NO_ANSWER).wait_for()
        page.locator("#live", has_text="mail").wait_for()  # the page stays
    finally:
        os.kill(store, signal.SIGCONT)
    page.locator("#trouble").wait_for(state="hidden")
    page.unroute("**/live/**")
    page.route("**/live/**", lambda route: route.abort())
    page.goto("/system")
    page.locator("#trouble", has_text="does not answer").wait_for()
    page.unroute("**/live/**")
    page.locator("#trouble").wait_for(state="hidden")


def test_a_change_that_gets_no_answer_says_so(page: Page, service: Service, watcher: Watcher) -> None:
    watcher.expects_trouble = True
    service.act("acme", lambda client: client.enqueue("mail", "row"))
    page.goto("/queues/mail")
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    page.locator("dialog .primary").wait_for()
    page.route("**/do/**", lambda route: route.abort())
    for _ in range(2):
        page.locator("dialog .primary").click()
        page.get_by_text("The server did not answer. It may have been done").wait_for()
    assert page.locator("dialog .unanswered").count() == 1
    page.get_by_role("button", name="Back").click()
    pause.click()
    page.locator("#notes").get_by_text("The server does not answer.").wait_for()


def test_a_double_click_changes_once(page: Page, service: Service) -> None:
    page.goto("/tokens")
    page.get_by_role("button", name="New token").click()
    page.locator("dialog [name=tenant]").fill("acme")
    page.locator("dialog .primary").dblclick()
    page.locator("#notes").get_by_text("Keep this token").first.wait_for()
    page.get_by_role("link", name="System").click()  # asked for after all that was sent
    page.get_by_text("store round trip").wait_for()
    page.goto("/tokens")
    assert page.locator("tbody tr").count() == 1


def test_hidden_tabs_ask_nothing(page: Page, service: Service) -> None:
    fill(service, "acme", tasks=1_000)
    page.add_init_script("""
        window.updates = 0;
        document.addEventListener("htmx:sse:after:message", () => window.updates++);
    """)
    page.goto("/queues")
    wait_for(page, "() => window.updates > 0")  # the stream has begun
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: true, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    page.wait_for_timeout(500)
    found = page.evaluate("window.updates")
    service.act("acme", lambda client: client.enqueue("mail", "row"))
    page.wait_for_timeout(2_500)
    assert page.evaluate("window.updates") == found
    page.evaluate("""() => {
        Object.defineProperty(document, "hidden", { value: false, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }""")
    page.locator("td.n", has_text="1,001").first.wait_for()


LONG = "n" * 127  # a tenant's name


def test_long_names_leave_pages_whole(chromium: Browser, service: Service, watcher: Watcher) -> None:
    service.act(LONG, lambda client: client.enqueue("mail", "fail", id="x" * 64, max_attempts=1))
    places = ("/", "/tenants", f"/queues/mail/tenants/{LONG}", f"/queues/mail/tasks/{LONG}/{'x' * 64}", "/dead")
    with service.worker("w1"):
        for size in SIZES:
            with open_tab(chromium, service, watcher, size) as tab:
                tab.goto(f"/queues/mail/tenants/{LONG}")
                tab.get_by_text("no such mailbox").wait_for()
                for place in places:
                    tab.goto(place)
                    width = tab.evaluate("document.documentElement.scrollWidth")
                    assert width <= SIZES[size][0], f"{place} is {width} pixels wide"
                    assert tab.locator(".places [aria-current]").is_visible()
                tab.goto("/tenants")
                box = tab.locator("td.n button.value").first.bounding_box()
                assert box
                assert box["x"] < SIZES[size][0]


def test_a_phone_shows_which_place_it_is_at(chromium: Browser, service: Service, watcher: Watcher) -> None:
    with open_tab(chromium, service, watcher, "phone") as tab:
        tab.goto("/system")
        box = tab.locator(".places [aria-current]").bounding_box()
        assert box
        assert 0 <= box["x"] <= SIZES["phone"][0] - box["width"]


def set_up(client: fairq.sync.Client) -> None:
    """Give a tenant something for each page."""
    client.enqueue("mail", "row", id="late", delay=3_600)
    client.enqueue("mail", "fail", id="dies", max_attempts=1, priority=9, events=True)
    client.schedule("mail", "nightly", {}, cron="0 3 * * *")
    client.open_batch("mail", id="rows")


PLACES = (
    "/", "/?period=1h", "/queues", "/queues/mail", "/tenants", "/queues/mail/tenants/acme",
    "/queues/mail/tasks/acme/late", "/queues/mail/tasks/acme/dies", "/delayed", "/schedules", "/batches", "/workers",
    "/workers/w1", "/attempts", "/dead", "/simulate", "/audit", "/tokens", "/system",
    "/search?text=acme", "/sign-in",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_is_whole_and_accessible(
    chromium: Browser, service: Service, watcher: Watcher, size: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    fill(service, "acme", "globex", tasks=3_000)
    service.act("acme", set_up)
    with service.worker("w1"), open_tab(chromium, service, watcher, size, scheme) as tab:
        tab.goto("/queues/mail/tenants/acme")
        tab.get_by_text("no such mailbox").wait_for()
        tab.get_by_role("button", name="Pause").click()
        tab.locator("dialog").get_by_role("button", name="Pause").click()
        tab.locator("#notes p").wait_for()
        for place in PLACES:
            tab.goto(place)
            tab.locator("h1").wait_for()
            found = Axe().run(tab)
            grave = [each for each in found.response["violations"] if each["impact"] in ("serious", "critical")]
            assert not grave, f"{place}: {[(each['id'], each['nodes'][0]['html'][:200]) for each in grave]}"
            width = tab.evaluate("document.documentElement.scrollWidth")
            assert width <= SIZES[size][0], f"{place} is {width} pixels wide"
