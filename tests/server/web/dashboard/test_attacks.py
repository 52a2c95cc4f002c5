"""What a hostile tenant writes, another site's page sends, a stranger guesses, a viewer or an old token tries."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
import structlog
import trio

from fairq.server.engine.net.auth import Auth
from fairq.server.web.dashboard import live as live_module
from fairq.server.web.dashboard import site as site_module
from fairq.server.web.dashboard.actions import ACTIONS
from fairq.server.web.dashboard.pages import PAGES
from fairq.server.web.dashboard.sessions import COOKIE
from fairq.wire.terms import Role
from tests.server.harness import OPERATOR, WORKER, raw, tenant

from .harness import FORM, Raw, Site, busy, fields_of, text_of, visited
from .test_live import following
from .test_sessions import STRICT, sign_in, token_for

BREAKS = "\"><script>alert(1)</script>'{{7*7}}\r\revent: left\rdata: bye\r\r\r\nid: 1\nretry: 1\x1b[2J\x00\u2028</pre>"
LINE_ENDS = re.compile(r"\r\n|\r|\n")  # of a stream of events, as browsers read it


async def whole_stream(site: Site, path: str) -> str:
    """What a page's stream brings until its session ends, which is after the first message."""
    text = ""
    async with site.browser.stream("GET", f"/live{path}") as answer:
        assert answer.status_code == 200
        async for part in answer.aiter_text():
            text += part
            site.forget()
    return text.removesuffix("event: left\ndata: signed out\n\n")


@pytest.mark.parametrize("path", ["/queues/q/tenants/ada", "/queues/q/tasks/ada/bad"])
async def test_an_error_cannot_end_a_message_of_a_stream_and_begin_another(
    server_store: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "CHECK_S", 0.0)
    async with visited(server_store) as site, raw(site.served, WORKER) as worker:
        async with raw(site.served, tenant("ada")) as ada:
            await ada.ask("enqueue", queue="q", tasks=[{"id": "bad", "payload": BREAKS, "max_attempts": 1}])
        await worker.attach("q", name="w1")
        await worker.settle("q", "nack", *await worker.pushed(), error=BREAKS)
        html = await site.read(path)
        assert "<script>alert" not in html
        assert "49" not in text_of(html).partition("alert(1)")[2][:20]
        lines = LINE_ENDS.split(await whole_stream(site, path))
        assert lines[-2:] == ["", ""]
        assert all(line.startswith("data: ") for line in lines[:-2]), [each for each in lines if "data" not in each]
        assert any("event: left" in line for line in lines)  # as text


TAGS = "</td>\"'><script>alert(1)</script><img src=x onerror=alert(1)>"
TURNS = "\u202e\u2066"
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd"
LOOKS = (
    "/", "/queues", "/queues/q", "/tenants?queue=q", "/queues/q/tenants/ada", "/queues/q/tasks/ada/bad",
    "/queues/q/tasks/ada/runs", "/queues/q/tasks/ada/waits", "/attempts?queue=q", "/dead?queue=q", "/audit", "/tokens",
    "/workers/w1", "/search?text=said",
)  # fmt: skip
REFLECTIONS = (
    "/attempts?queue=q&state=T&tenant=T&name=T&error=T", "/dead?queue=q&tenant=T&reason=T&error=T",
    "/dead?queue=q&error=T", "/search?text=T", "/audit?queue=T&tenant=T&verb=T&token=T&by=T", "/sign-in?next=T", "/T",
    "/queues/T", "/workers/T", "/queues/q/tenants/T", "/queues/q/task?id=T", "/do/replay?queue=q&error=T",
    "/do/weight?queue=q&tenant=T", "/do/drain?worker=T", "/tenants?queue=T&sort=T", "/?queue=T&period=T",
)  # fmt: skip


class Elements(HTMLParser):
    """What a browser would make of a page: its scripts, and the attributes that would run one."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.scripts, self.texts = list[str](), list[str]()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what runs."""
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("src") or "inline")
        self.scripts += [name for name in given if name.startswith("on")]
        self.scripts += [to for to in (given.get("href"), given.get("src")) if to and to.startswith("javascript")]

    def handle_data(self, data: str) -> None:
        """Note what is read."""
        self.texts.append(data)


async def test_what_others_write_is_text_on_every_page(server_store: str) -> None:
    text = f"said {TAGS} {RIGHT_TO_LEFT} " + "long " * 300
    named = {"name": TAGS, "group": TAGS[:60] + RIGHT_TO_LEFT, "payload": {text: [text]}, "max_attempts": 1}
    async with (
        visited(server_store) as site,
        raw(site.served, WORKER) as worker,
        raw(site.served, OPERATOR) as operator,
    ):
        async with raw(site.served, tenant("ada")) as ada:
            await ada.ask("enqueue", queue="q", tasks=[{"id": id, **named} for id in ("bad", "runs", "waits")])
        await operator.ask("add_webhook", queue="q", url=f"https://a.example/{TAGS.replace(' ', '')}", name=TAGS)
        await operator.create_token(Role.VIEWER, label=TAGS)
        await worker.attach("q", name="w1", credit=2)
        bad, runs = await worker.pushed(2)
        report = {"id": runs["full_id"], "lease": runs["lease"], "fraction": 0.5, "text": TAGS}
        await worker.ask("progress", queue="q", reports=[report])
        await worker.settle("q", "nack", bad, error=text, traceback=text)
        shown = list[str]()
        for path in [*LOOKS, *(each.replace("T", quote(TAGS, safe="")) for each in REFLECTIONS)]:
            answer = await site.browser.get(path, headers={"Accept": "text/html"})
            assert answer.headers["content-type"].startswith("text/html"), path
            page = Elements(answer.text)
            assert answer.status_code < 500, path
            assert [each for each in page.scripts if not each.startswith("/static/")] == [], path
            shown += page.texts if path in LOOKS else []
        assert sum("onerror=alert(1)" in each for each in shown) >= 10


async def test_no_text_turns_the_direction_of_a_page_and_a_form_sends_back_what_it_was_given(
    server_store: str,
) -> None:
    async with visited(server_store) as site, raw(site.served, WORKER) as worker:
        async with raw(site.served, tenant("ada")) as ada:
            await ada.ask("enqueue", queue="q", tasks=[{"id": "bad", "payload": TURNS, "max_attempts": 1}])
        await worker.attach("q", name="w1")
        await worker.settle("q", "nack", *await worker.pushed(), error=f"paid {TURNS}1", traceback=TURNS)
        for path in ("/queues/q/tasks/ada/bad", "/dead?queue=q", "/attempts?queue=q"):
            html = await site.read(path)
            assert r"\u202e\u2066" in html
            assert not {*TURNS} & {*html}
        html = await site.read(f"/dead?queue=q&error={quote(TURNS)}")
        assert f'name="error" value="{TURNS}"' in html
        assert r"paid \u202e\u20661" in html


PATHS = ("/", "/live/queues", "/sign-in", "/static/fairq.js", "/metrics", "/do/weight?queue=q")
STRANGE_HOSTS = ("evil.example", "evil.example:7702", "127.0.0.1.evil.example", "localhost.evil.example", "")


async def test_a_name_that_dns_has_pointed_here_gets_nothing(site: Site) -> None:
    for path, host in product(PATHS, STRANGE_HOSTS):
        answer = await site.browser.get(path, headers={"Host": host})
        assert (answer.status_code, "set-cookie" in answer.headers) == (421, False), (path, host)
        posted = await site.browser.post("/sign-in", data={"token": "dev-operator"}, headers={"Host": host})
        assert posted.status_code == 421


async def test_metrics_are_open_only_to_who_asks_this_machine(server_store: str) -> None:
    async with visited(server_store, **STRICT) as site:
        assert (await site.browser.get("/metrics")).status_code == 200
        assert (await site.browser.get("/metrics", headers={"Host": "evil.example"})).status_code == 401
        _, token = await token_for(site, Role.OPERATOR)
        proxied = {"Host": "fairq.example", "Authorization": f"Bearer {token}"}
        assert (await site.browser.get("/metrics", headers=proxied)).status_code == 200


SIMPLE_POSTS = ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded")  # any site may


async def test_a_page_of_another_site_or_port_changes_nothing(site: Site, worker: Raw) -> None:
    own = str(site.browser.base_url).rstrip("/")
    fields = await site.open("weight", queue="q", tenant="ada")
    origins = (
        "https://evil.example", "null", f"{own}0", f"{own}@evil.example", own.replace("127.0.0.1", "localhost"),
        "http://127.0.0.1", "http://[::1]:7702", "chrome-extension://abc", "",
    )  # fmt: skip
    paths = ("/do/weight", "/ask/replay", "/sign-out", "/sign-in")
    posts = [*product(SIMPLE_POSTS, origins[:2], paths), *product(SIMPLE_POSTS[:1], origins[2:], paths[:2])]
    for kind, origin, path in posts:
        headers = {"Origin": origin, "Content-Type": kind}
        answer = await site.browser.post(path, data=fields | {"weight": "9"}, headers=headers)
        assert answer.status_code == 403, (kind, origin, path)
    assert (await site.store.tenants("q", ["ada"]))[0].weight == 1
    await site.read("/queues")  # still signed in
    ours = await site.browser.post("/do/weight", data=fields | {"weight": "9"}, headers={**FORM, "Origin": own})
    assert ours.status_code == 200


async def test_a_get_changes_nothing_whatever_it_says(site: Site, worker: Raw) -> None:
    fields = await site.open("weight", queue="q", tenant="ada") | {"weight": "9", "_method": "POST"}
    override = {name: "POST" for name in ("X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method")}
    for action in ACTIONS:
        await site.browser.get(f"/do/{action.name}", params=fields, headers=override)
    for method in ("PUT", "PATCH", "DELETE", "TRACE", "OPTIONS"):
        assert (await site.browser.request(method, "/do/weight", params=fields)).status_code == 405
    for path in ("/ask/weight", "/sign-out"):
        assert (await site.browser.get(path, params=fields, headers=override)).status_code in (404, 405)
    api = {**override, "Authorization": "Bearer dev-viewer", "X-HTTP-Method-Override": "DELETE"}
    assert (await site.browser.get("/api/queues/q?_method=DELETE", headers=api)).status_code == 400
    await site.browser.get("/api/queues/q", headers=api)
    assert (await site.store.tenants("q", ["ada"]))[0].weight == 1
    assert "Nothing was changed" in text_of(await site.read("/audit"))


GIVEN: dict[str, Any] = {
    "queue": "q", "tenant": "ada", "weight": "9", "max_running": "1", "opening_hours": "mon-fri 08:00-18:00 UTC",
    "lease_ms": "5000", "id": "ada/dies", "worker": "w1", "name": "nightly", "role": "operator", "ids": "ada/dies",
}  # fmt: skip


async def test_a_viewer_changes_nothing_by_any_action(server_store: str) -> None:
    async with busy(server_store, admin_host="127.0.0.1") as (site, _):
        assert (await sign_in(site, "dev-viewer", "/queues"))[0] == 303
        page = await site.read("/tokens")
        assert ("may only look" in page, "/do/" in page) == (True, False)
        csrf = fields_of(await site.read("/queues"))["csrf"]
        for action in ACTIONS:
            given = GIVEN | ({"id": "fq"} if action.name == "revoke-token" else {})
            for form in (given, {name: value for name, value in given.items() if name != "ids"}):
                answer = await site.browser.post(f"/do/{action.name}", data=form | {"csrf": csrf}, headers=FORM)
                assert answer.status_code == 403, f"{action.name}: {text_of(answer.text)}"
                assert "token" in text_of(answer.text)
        assert "Nothing was changed" in text_of(await site.read("/audit"))
        assert (await site.browser.get("/api/queues")).status_code == 401  # a cookie is no token


async def test_a_cookie_that_somebody_planted_is_never_a_session(server_store: str) -> None:
    async with visited(server_store, **STRICT) as site:
        _, token = await token_for(site, Role.OPERATOR)
        planted = "a" * 43
        site.browser.cookies.set(COOKIE, planted)
        answer = await site.browser.post("/sign-in", data={"token": token}, headers=FORM)
        given = answer.headers["set-cookie"].partition("=")[2].partition(";")[0]
        assert len(given) == len(planted)
        assert given != planted
        site.browser.cookies.clear()
        for cookie in (planted, given[:-1] + "!", given.swapcase(), "*" * 43, "é" * 43, "\x01" * 43):
            answer = await site.browser.get("/queues", headers={b"Cookie": f"{COOKIE}={cookie}".encode()})
            assert answer.status_code == 303, cookie


@pytest.mark.parametrize("end", ["revoked", "expired"])
async def test_an_open_stream_ends_with_its_token(server_store: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "CHECK_S", 0.0)
    async with visited(server_store, **STRICT) as site:
        id, token = await token_for(site, Role.VIEWER)
        await sign_in(site, token)
        text = ""
        async with site.browser.stream("GET", "/live/queues") as answer:
            async for part in answer.aiter_text():
                if not text and end == "revoked":
                    await site.served.app.auth.revoke(id)
                elif not text:
                    monkeypatch.setattr(Auth, "_admit", _expired)
                text += part
        assert text.endswith("event: left\ndata: signed out\n\n")
        assert (await site.browser.get("/queues")).status_code == 303


def _expired(_auth: Auth, _record: Any) -> None:
    from fairq.errors import TokenExpired

    raise TokenExpired("the token expired")


async def test_one_token_cannot_take_all_streams(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_module, "MAX_OWN_STREAMS", 1)
    async with visited(server_store) as site:
        await site.read("/queues")
        async with following(site, "/queues"):
            refused = await site.browser.get("/live/workers")
            assert (refused.status_code, "1 with one token" in refused.text) == (429, True)
            site.browser.cookies.clear()
            await sign_in(site, "dev-viewer")
            async with following(site, "/workers"):
                pass


async def test_a_reader_who_has_left_keeps_no_stream_of_a_quiet_page(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "STEP_S", 3_600.0)  # nothing is sent that could fail
    monkeypatch.setattr(site_module, "MAX_OWN_STREAMS", 1)
    async with visited(server_store) as site:
        async with following(site, "/queues") as follower:
            await follower.until("no queue yet")
        while True:  # until the server has read that the connection was closed
            answer = await site.browser.send(site.browser.build_request("GET", "/live/workers"), stream=True)
            await answer.aclose()
            if answer.status_code == 200:
                return


async def test_no_answer_may_be_kept_or_framed(site: Site, worker: Raw) -> None:
    asked = [page.path for page in PAGES if "{" not in page.path]
    for path in [*asked, "/sign-in", "/nowhere", "/livez", "/readyz", "/metrics", "/api/queues", "/do/weight"]:
        for headers in ({}, {"HX-Request": "true"}, {"Accept": "text/html"}):
            site.browser.cookies.clear()
            answer = await site.browser.get(path, headers=headers)
            assert answer.headers["cache-control"] == "no-store", path
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert answer.headers["cross-origin-resource-policy"] == "same-origin", path
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
    static = await site.browser.get("/static/fairq.js")
    assert static.headers["cache-control"] == "no-cache"  # asks again, and the answer is 304
    again = await site.browser.get("/static/fairq.js", headers={"If-None-Match": static.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


TRICKS = (
    "/static/../site.py", "/static/%2e%2e/site.py", "/static/..%2fsite.py", "/static/%2e%2e%2f%2e%2e%2fsettings.py",
    "/static//etc/passwd", "/static/%2fetc%2fpasswd", "/static/%00", "/static/fairq.css%00.js", "/static/fairq.css/..",
    "/static/", "/static/..\\site.py", "/static/%5c..%5csite.py", "/static/%c0%ae%c0%ae/site.py", "/static/․․/site.py",
    "/static/" + "a/" * 900, "/static/" + "a" * 4000, "//evil.example/", "//evil.example/queues",
    "/queues/../do/weight",
    "/queues/%2e%2e", "/queues/q/tenants/..", "/queues/q/tasks/%2e%2e/%2e%2e", "/queues/q/tasks/" + "%2f" * 99,
    "/queues/q%0d%0aSet-Cookie:x=1", "/sign-in%0d%0aX:1", "/do/..%2fsign-out", "/live//evil.example",
    "/live/live/queues",
    "/workers/%1b%5b2J", "/schedules?offset=%C2%B2", "/schedules?offset=-1", "/schedules?offset=" + "9" * 9,
    "/tenants?sort=__class__", "/audit?cursor=%00", "/?period=x", "/search?text=%00%ff/", "/search?text=../..",
    "/simulate?weight:ada=nan", "/simulate?slots=inf", "/simulate?slots=1e400", "/simulate?weight:=1&traffic:ada=-0",
)  # fmt: skip


async def test_an_odd_path_gets_a_page_or_a_refusal(site: Site, worker: Raw) -> None:
    await site.read("/queues")
    cookie = f"{COOKIE}={site.browser.cookies[COOKIE]}"
    url = site.browser.base_url
    for path in TRICKS:
        # httpx would tidy the path up
        async with await trio.open_tcp_stream(url.host, url.port or 0) as stream:
            asked = path if path.isascii() else path.encode().decode("latin-1")
            head = f"GET {asked} HTTP/1.1\r\nHost: {url.host}\r\nCookie: {cookie}\r\nConnection: close\r\n\r\n"
            await stream.send_all(head.encode("latin-1"))
            answer = b"".join([part async for part in stream]).decode()
        status = int(answer.split()[1])
        assert status < 500, (path, answer)
        assert "from __future__" not in answer, path
        assert "root:" not in answer, path
        assert "\x1b" not in answer, path
        head = answer.partition("\r\n\r\n")[0].lower()
        assert "location" not in head, path
        assert "\r\nx:1" not in head, path
        assert "set-cookie" not in head, path


async def test_where_sign_in_leads_cannot_be_bent(server_store: str) -> None:
    async with visited(server_store, **STRICT) as site:
        for path in ("//evil.example/", "//evil.example/queues", "/\\evil.example/"):
            answer = await site.browser.get(str(site.browser.base_url).rstrip("/") + path)
            assert answer.status_code == 404, path
        _, token = await token_for(site, Role.VIEWER)
        for to in (
            "https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", "", "/\t/evil.example",
            "/\n/evil.example", "\t//evil.example", "/\t/[", "/\\/evil.example", "///evil.example",
        ):  # fmt: skip
            status, where = await sign_in(site, token, to)
            assert (status, where.startswith("/")) == (303, True)
            assert not where.startswith(("//", "/\\", "/\t", "/\n")), where


async def test_a_form_is_not_inflated_nor_read_as_anything_else(server_store: str) -> None:
    import gzip

    async with visited(server_store) as site:
        csrf = (await site.open("create-token"))["csrf"]
        bomb = gzip.compress(b"csrf=" + csrf.encode() + b"&queue=" + b"q" * 5_000_000)
        for path in ("/do/weight", "/sign-in", "/ask/replay"):
            answer = await site.browser.post(path, content=bomb, headers={**FORM, "Content-Encoding": "gzip"})
            assert answer.status_code in (400, 401)
            many = "&".join(f"x{n}=1" for n in range(1_001))
            assert (await site.browser.post(path, content=many, headers=FORM)).status_code == 400
            long = await site.browser.post(path, content=b"x" * 262_145, headers=FORM)
            assert long.status_code == 413


async def test_a_failure_logs_its_path_as_it_came(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("odd")

    async with busy(server_store) as (site, _):
        monkeypatch.setattr(site_module.Dashboard, "_context", fail)
        with structlog.testing.capture_logs() as logs:
            assert "internal error" in await site.read("/workers/%1b%5b2J%0anew", 500)
        (logged,) = (entry for entry in logs if entry["event"] == "page failed")
        assert logged["path"] == "/workers/%1b%5b2J%0anew"
