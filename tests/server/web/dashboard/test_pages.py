"""Every page: of an empty service, of a busy one, of one whose store is gone; what it says, and what it must not."""

from __future__ import annotations

import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import redis

from fairq.cli.app import commands
from fairq.errors import Unavailable
from fairq.model.checks import MAX_TIME_MS
from fairq.model.places import partition_of
from fairq.model.tasks import NewTask
from fairq.server.web.dashboard import site as module
from fairq.server.web.dashboard.pages import PAGES
from fairq.store import library
from fairq.store.connection import Connection
from fairq.store.partitions import place_in
from fairq.wire.terms import SILENT_S
from tests import clusters, stores
from tests.server.harness import WORKER, lose, raw, running, tenant
from tests.store.proxy import Proxy
from tests.store.waiting import wait_until

from .harness import Raw, Site, text_of, visited

PLAIN = [page.path for page in PAGES if "{" not in page.path]


async def test_an_empty_service_says_what_to_do_next(site: Site) -> None:
    for path in PLAIN:
        html = await site.read(path)
        assert "fairq" in html
        if path != "/system":
            assert 'class="empty"' in html


SHOWN: list[tuple[str, list[str]]] = [
    ("/", ["q", "ada", "1 / 1 running / slots", "2 ready"]),
    ("/?queue=q&period=live", ["ada"]),
    ("/queues", ["q", "1 / 1", "In/s", "Oldest wait"]),
    ("/queues/q", ["lease_ms 30.0 s", "stored bytes 1.0 GiB", "Always open."]),
    ("/tenants", ["ada", "bob"]), ("/tenants?text=ad&sort=weight", ["ada"]), ("/tenants?text=*", ["No tenant"]),
    ("/queues/q/tenants/ada", ["Tenant ada", "ada/t1", "ada/t2", "smtp <said> no"]),
    ("/queues/q/tasks/ada/t1", ["ready", "Why it waits", "its tenant's own tasks use all 1 slots", "Payload 1",
     "attempts, at most 25", "enqueued 20"]),
    ("/queues/q/tasks/ada/t0", ["leased", "attempt 1", "on worker w1"]),
    ("/queues/q/tasks/ada/dies", ["dead", "exhausted, after 1 attempt", "smtp <said> no", '"to": "<b>"']),
    ("/queues/q/tasks/bob/later", ["delayed", "its start time has not come"]),
    ("/delayed", ["1 delayed in all", "1 in the next 24 hours", "bob"]),
    ("/schedules", ["There are no schedules"]), ("/batches", ["There are no batches"]),
    ("/attempts", ["ada/t0", "running", "w1", "ada/dies", "dead", "smtp <said> no"]),
    ("/attempts?queue=q&error=none", ["No attempts match"]), ("/attempts?state=dead&tenant=ada", ["ada/dies", "dead"]),
    ("/workers", ["w1", "1 / 1"]), ("/workers/w1", ["ada/t0"]),
    ("/dead", ["Replay all 1 that match", "smtp <said> no"]), ("/dead?tenant=bob", ["No dead letters match"]),
    ("/tokens", ["There are no tokens"]),
    ("/system", ["ready", "noeviction", "store round trip", "Syncs it to disk", "this server's"]),
    ("/search?text=ada/t1", ["ada/t1", "ready"]), ("/search?text=smtp", ["ada/dies"]),
    ("/search?text=bo", ["bob"]), ("/search?text=[nothing", ["Nothing found"]),
]  # fmt: skip


async def test_a_page_shows_what_there_is(site: Site, worker: Raw) -> None:
    for path, said in SHOWN:
        html = await site.read(path)
        for each in said:
            assert each in text_of(html), text_of(html)
        assert "<said>" not in html
        assert "<b>" not in re.sub(r"<b>[^<]*</b>", "", html)


NOT_THERE: list[tuple[str, int, str]] = [
    ("/queues/none", 404, "there is no queue 'none'"), ("/?queue=none", 404, "there is no queue 'none'"),
    ("/queues/q/tenants/none", 404, "has no tenant 'none'"), ("/queues/q/tasks/ada/none", 404, "has no task"),
    ("/workers/none", 404, "no worker none is attached"), ("/queues/BAD NAME", 400, "queue"),
    ("/dead?queue=q&cursor=" + "x" * 300, 400, "invalid cursor"), ("/?queue=" + "q" * 7000, 413, "6144"),
    ("/batches?queue=q&state=odd", 400, "state must be one of"),
    ("/attempts?queue=q&state=odd", 400, "state must be one of"),
]  # fmt: skip


async def test_a_task_that_waits_shows_its_payload_and_what_it_was_enqueued_with(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        asked = {"priority": 7, "dedupe_key": "k1", "name": "welcome", "expires_at_ms": 4_102_444_800_000}
        await ada.ask("enqueue", queue="q", tasks=[{"id": "t", "payload": {"to": ["<b>"]}, **asked}])
        await ada.ask("enqueue", queue="q", tasks=[{"id": "long", "payload": "x" * 100_000}])
        text = text_of(await site.read("/queues/q/tasks/ada/t"))
        for said in ('{ "to": [ "<b>" ] }', "name welcome", "priority 7", "dedupe key k1", "expires 2100-01-01"):
            assert said in text
        assert "… (97.7 KiB in all)" in await site.read("/queues/q/tasks/ada/long")


async def test_no_page_reads_a_long_payload(site: Site, worker: Raw, redis_client: redis.Redis) -> None:
    """Pages are read anew each second. What the store sends for them is counted."""

    def sent() -> int:
        return int(redis_client.info("stats")["total_net_output_bytes"])

    async with raw(site.served, tenant("ada")) as ada, raw(site.served, WORKER) as other:
        for id in ("dead", "waits"):
            await ada.ask("enqueue", queue="long", tasks=[{"id": id, "payload": "x" * 1_000_000}])
        await other.attach("long", name="w2")
        await other.settle("long", "reject", *await other.pushed(), error="no")
    for path, said in [
        ("/queues/long/tasks/ada/dead", "976.6 KiB in all"), ("/queues/long/tasks/ada/waits", "976.6 KiB in all"),
        ("/queues/long/tenants/ada", "ada/waits"), ("/dead?queue=long", "ada/dead"),
        ("/search?text=ada/dead", "ada/dead"),
    ]:  # fmt: skip
        before = sent()
        html = await site.read(path)
        assert said in html
        assert len(html) < 50_000, path
        assert sent() - before < 100_000, path


async def test_what_is_paused_says_so_and_names_the_operator(site: Site, worker: Raw) -> None:
    await site.do("pause", queue="q", tenant="ada")
    assert "Tenant ada is paused: nothing of it is started. Paused by dev-operator at 20" in text_of(
        await site.read("/queues/q/tenants/ada")
    )
    assert "Paused by" not in text_of(await site.read("/queues/q/tenants/bob"))
    await site.do("pause", queue="q")
    for path in ("/", "/queues/q", "/queues/q/tenants/ada", "/queues/q/tenants/bob"):
        text = text_of(await site.read(path))
        assert "paused: nothing" in text, path
        assert "Paused by dev-operator at 20" in text or path == "/", path


async def test_a_tenant_and_a_search_are_followed_over_all_queues(site: Site, worker: Raw) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.enqueue("other", ["elsewhere"])
    assert "In other queues" in await site.read("/queues/q/tenants/ada")
    assert "In other queues" not in await site.read("/queues/q/tenants/bob")
    found = text_of(await site.read("/search?text=ada"))
    assert found.index("Queue other") > 0 < found.index("Queue q")
    assert "ada/elsewhere" in await site.read("/search?text=ada/elsewhere")
    assert "Queue other" not in text_of(await site.read("/search?text=ada&queue=q"))


async def test_what_is_not_there_is_said_on_a_page(site: Site, worker: Raw) -> None:
    for path, status, said in NOT_THERE:
        assert said in text_of(await site.read(path, status))


async def test_pages_may_load_nothing_from_elsewhere_and_run_no_script_of_theirs(site: Site, worker: Raw) -> None:
    linked = set[str]()
    for path in [*PLAIN, "/sign-in", "/queues/q", "/queues/none", "/do/limits?queue=q"]:
        answer = await site.browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert not re.search(r"""(?:src|href)="(?:https?:)?//|<script>|<style|\sstyle=|\son[a-z]+=""", answer.text)
        linked |= set(re.findall(r'(?:src|href)="(/static/[^"]*)"', answer.text))
    for path in linked:
        assert (await site.browser.get(path)).status_code == 200, path


async def test_a_queue_without_workers_says_so(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.enqueue("q", ["t"])
        for path in ("/", "/queues/q", "/workers", "/queues/q/tenants/ada"):
            text = text_of(await site.read(path))
            assert "No worker takes tasks of" in text
            assert "Start one: FAIRQ_TOKEN=dev-worker fairq worker jobs:app" in text


async def test_a_worker_at_another_server_counts(site: Site, server_store: str) -> None:
    async with running(server_store) as other, raw(other, WORKER) as worker, raw(site.served, tenant("ada")) as ada:
        await worker.attach("q", "r", name="far")
        await ada.enqueue("q", ["t1", "t2"])
        await worker.pushed()
        await wait_until(lambda: bool(site.served.app.worker_registry.elsewhere.queues()))
        for path in ("/", "/queues", "/queues/q", "/workers", "/queues/q/tenants/ada"):
            text = text_of(await site.read(path))
            assert "no worker" not in text.lower()
            assert ("1 / 1 running / slots, shared by 2 queues 0 delayed" in text) == (path in ("/", "/queues/q"))
            assert ("1 workers" in text) == (path in ("/", "/queues/q"))
        for path, said in (("/", r" 1 1 [\d.]+ m?s / "), ("/queues/q/tenants/ada", "over 1 starts of the last five")):
            assert re.search(said, text := text_of(await site.read(path))), text


async def test_a_silent_worker_is_reported_on_all_pages_that_are_about_it(site: Site, worker: Raw) -> None:
    for connection in site.served.app.connections:
        connection.session.last_received_at -= SILENT_S
    site.served.app.worker_registry.silent.look()
    for path in ("/", "/queues/q", "/workers", "/workers/w1", "/queues/q/tenants/ada", "/queues/q/tasks/ada/t0"):
        text = text_of(await site.read(path))
        assert re.search(r"silent for \d+ s, holds 1 task\b", text), (path, text)
    for path in ("/", "/queues/q", "/workers"):
        assert "No worker takes tasks of q" in text_of(await site.read(path))


async def test_commands_on_pages_are_ones_that_work(site: Site) -> None:
    for path, said in (
        ("/", 'fairq enqueue emails \'{"to": "ada"}\' --token dev-tenant:acme'),
        ("/workers", "FAIRQ_TOKEN=dev-worker fairq worker jobs:app"),
        ("/tokens", "fairq tokens create tenant --tenant acme"),
        ("/sign-in", "fairq tokens create operator"),
    ):
        assert said in text_of(await site.read(path))
        words = shlex.split(said.rpartition("fairq ")[2])
        commands().parse_args(words, exit_on_error=False, print_error=False)


async def test_the_command_that_makes_a_schedule_is_one_that_works(site: Site, worker: Raw) -> None:
    html = unescape(await site.read("/schedules"))
    words = shlex.split(html.partition("<pre>fairq ")[2].partition("</pre>")[0])
    assert words[:3] == ["schedules", "create", "q"]
    commands().parse_args(words, exit_on_error=False, print_error=False)


async def test_a_start_after_the_last_year_breaks_no_page(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.ask("enqueue", queue="q", tasks=[{"id": "far", "payload": 1, "start_at_ms": MAX_TIME_MS}])
        for path in ("/delayed", "/queues/q/tasks/ada/far", "/queues/q/tenants/ada", "/tenants"):
            assert "ada" in text_of(await site.read(path))
        assert "9999-12-31" in text_of(await site.read("/delayed"))


async def test_of_a_cluster_it_is_said_which_node_is_shown(cluster: clusters.Cluster) -> None:
    async with visited(cluster.url) as site:
        assert f"Store: {stores.HOST}:" in (text := text_of(await site.read("/system")))
        assert "the first of 3 nodes" in text


async def test_a_batch_counts_an_expired_task_once(site: Site) -> None:
    async with raw(site.served, tenant("ada")) as ada:
        await ada.ask("open_batch", queue="q", id="b")
        task = {"payload": 1, "batch": "b"}
        await ada.ask("enqueue", queue="q", tasks=[{**task, "id": "t"}, {**task, "id": "late", "expires_in_ms": 1}])

        async def has_expired() -> bool:
            await site.store.tick("q")  # the server would see that queue within five seconds
            (state,) = await site.store.batches("q", ["ada/b"])
            return state is not None and state.expired == 1

        await wait_until(has_expired)
        assert "1 / 2" in text_of(await site.read("/batches"))


async def test_tenants_called_as_a_folder_have_pages(site: Site) -> None:
    for name in (".", ".."):
        async with raw(site.served, tenant(name)) as dots:
            await dots.enqueue("q", ["t"])
    tenants = await site.read("/tenants")
    for name in (".", ".."):
        html = await _follow(site, tenants, name)
        assert f"Tenant {name} in queue q" in text_of(html)
        assert f"Task {name}/t in queue q" in text_of(await _follow(site, html, f"{name}/t"))


async def _follow(site: Site, html: str, text: str) -> str:
    """Read the page that a link of this text leads to, in a browser too."""
    found = re.search(rf'href="([^"]*)">{re.escape(text)}<', html)
    assert found
    path, _, query = unescape(found[1]).partition("?")
    assert not {".", ".."}.intersection(path.split("/"))
    page = await site.read(f"{path}?{query}")
    assert f'hx-sse:connect="/live{path}?' in page
    return page


@pytest.mark.parametrize("error", ["\u2603" * 2000, "smtp said no\r\nand more", " \n  no", "x" * 101])
async def test_a_group_of_dead_letters_is_one_click_away_whatever_its_error_says(
    site: Site, worker: Raw, error: str
) -> None:
    async with raw(site.served, tenant("bob")) as bob:
        await worker.settle("q", "ack", *await worker.pushed())
        for _ in range(2):
            await worker.settle("q", "ack", *await worker.pushed())
        await bob.ask("enqueue", queue="q", tasks=[{"id": "odd", "payload": 1, "max_attempts": 1}])
        await worker.settle("q", "nack", *await worker.pushed(), error=error)
        for path in ("/dead", "/queues/q/tenants/bob"):  # 500 letters of 2,048 characters would bury all else
            assert max(map(len, re.findall(r'class="error">([^<]*)<', await site.read(path)))) <= 300, path
        links = re.findall(r'class="error"><a href="([^"]*)"', await site.read("/dead"))
        pages = [await site.read(unescape(each)) for each in links]
        assert [text_of(each).count("bob/odd") for each in pages].count(1) == 1
        assert "bob/odd" in await site.read(f"/search?{urlencode({'text': error.strip()[:150]})}")
        query = urlsplit(unescape(next(link for link, page in zip(links, pages, strict=True) if "bob/odd" in page)))
        note = await site.do("purge-dead", **dict(parse_qsl(query.query)))
        assert note == "1 dead letters deleted"


async def test_the_system_page_does_without_what_a_store_does_not_tell(tmp_path: Path) -> None:
    server = stores.LocalServer("redis" if stores.binary("redis") else "valkey", tmp_path / "store")
    server.start()
    try:
        async with visited(server.url) as site:
            with stores.connect(stores.of_owner(server.url)) as owner:
                owner.execute_command("ACL", "SETUSER", "fairq", "-config|get")
            text = text_of(await site.read("/system"))
            assert re.search(r"Version (Redis|Valkey) \d+\.", text)
            assert "Syncs it to disk the store does not tell" in text
    finally:
        server.stop()


@pytest.mark.parametrize(("path", "command"), [("/queues", "FCALL_RO"), ("/delayed", "ZCOUNT")])
async def test_a_store_that_goes_away_amid_a_page_is_reported(
    site: Site, worker: Raw, monkeypatch: pytest.MonkeyPatch, path: str, command: str
) -> None:
    call, history = Connection.call, library.function_name("history")

    async def call_until(connection: Connection, *words: Any, **hold: Any) -> Any:
        if words[0] == command and (command == "ZCOUNT" or words[1] == history):
            raise Unavailable("the store went away")
        return await call(connection, *words, **hold)

    monkeypatch.setattr(Connection, "call", call_until)
    assert "the store went away" in text_of(await site.read(path, 503))


async def test_an_unknown_path_is_shown_to_people_on_a_page(site: Site) -> None:
    for path, accept, kind in (
        ("/nope", "text/html,*/*", "text/html"), ("/nope", "*/*", "application/problem+json"),
        ("/queues/", "text/html", "text/html"),
    ):  # fmt: skip
        answer = await site.browser.get(path, headers={"Accept": accept})
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (404, kind)
    assert "set-cookie" not in answer.headers


async def test_a_store_that_is_away_is_reported_and_pages_come_back(
    proxy: Proxy, proxied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 60.0)
    async with visited(proxied) as site:
        await site.read("/queues")
        proxy.hold()
        monkeypatch.setattr(module, "_ANSWER_S", 0.2)
        assert "the store has not answered for 0.2 s" in text_of(await site.read("/queues", 503))
        monkeypatch.setattr(module, "_ANSWER_S", 60.0)
        proxy.release()
        await site.read("/queues")


async def test_pages_show_what_answers_while_a_primary_is_away(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    store = site.store
    places = await store.registry.make("imports", "", partitions=3)
    for queue in ("imports", "one", "two"):
        for n in range(9):
            await store.enqueue(queue, f"t{n}", [NewTask(f"t{n}/a", b"1"), NewTask(f"t{n}/b", b"1", delay_ms=60_000)])
    here = [f"t{n}" for n in range(9) if place_in(places, f"t{n}") != places[0]]
    await site.read("/queues")
    lose(site.served, monkeypatch, places[0], "one")
    page = text_of(await site.read("/queues"))
    assert f"partition {partition_of(places[0])} of imports cannot be read" in page
    assert "one cannot be read" in page
    assert "two" in page
    assert f"imports no workers {len(here)} " in page
    for path in (
        "/?queue=imports", "/tenants?queue=imports", "/delayed?queue=imports", f"/queues/two/tenants/{here[0]}",
    ):  # fmt: skip
        html = text_of(await site.read(path))
        assert here[0] in html
        assert "cannot be read" in html or "two" in path
    for page in ("/queues/imports", "/dead?queue=imports", "/batches?queue=imports", "/schedules?queue=imports"):
        assert "cannot be read" in text_of(await site.read(page))
    assert here[0] in text_of(await site.read(f"/search?text={here[0]}"))
    assert "cannot be read" in text_of(await site.read("/later/simulate?queue=imports", 503))
