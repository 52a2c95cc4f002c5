"""Sign-in: who may, for how long, and what a post needs besides a cookie."""

from __future__ import annotations

import pytest

from fairq.server.engine.net import admission
from fairq.server.engine.net.admission import Admission
from fairq.server.web.dashboard import sessions as module
from fairq.store import keys
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests import stores

from .harness import FORM, Site, text_of, visited

STRICT = {"dev": False, "admin_host": "127.0.0.1"}


async def token_for(site: Site, role: Role) -> tuple[str, str]:
    """A token that the store knows: its id and its text."""
    id, token = make_token(role)
    await site.served.app.auth.create(TokenRecord(id, role.value, hash_token(token)))
    return id, token


async def sign_in(site: Site, token: str, to: str = "/queues") -> tuple[int, str]:
    answer = await site.browser.post("/sign-in", data={"token": token, "next": to}, headers=FORM)
    return answer.status_code, answer.headers.get("location") or text_of(answer.text)


async def test_dev_signs_in_by_itself_on_this_machine(site: Site) -> None:
    answer = await site.browser.get("/queues")
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Max-Age=28800" in cookie
    assert "set-cookie" not in (await site.browser.get("/queues")).headers  # it is signed in now


async def test_dev_does_not_sign_in_from_elsewhere(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOPBACK", ())
    async with visited(server_store) as site:
        answer = await site.browser.get("/queues")
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=/queues")


async def test_an_operator_signs_in_and_out(server_store: str) -> None:
    async with visited(server_store, **STRICT) as site:
        assert (await site.browser.get("/queues?x=1")).headers["location"] == "/sign-in?next=/queues%3Fx%3D1"
        _, token = await token_for(site, Role.OPERATOR)
        assert await sign_in(site, token) == (303, "/queues")
        assert token not in await site.read("/queues")
        assert token not in str(site.browser.cookies)
        assert (await site.browser.post("/sign-out", headers=FORM)).status_code == 403  # of another site
        csrf = (await site.open("create-token"))["csrf"]
        assert (await site.browser.post("/sign-out", data={"csrf": csrf}, headers=FORM)).status_code == 303
        assert (await site.browser.get("/queues")).status_code == 303


async def test_a_refused_sign_in_says_why(server_store: str) -> None:
    async with visited(server_store, **STRICT) as site:
        _, worker = await token_for(site, Role.WORKER)
        for token, status, said in (
            ("nonsense", 401, "unknown token"), ("", 401, "unknown token"),
            ("dev-operator", 401, "are for a server with --dev"), (worker, 403, "for tokens of operators and viewers"),
        ):  # fmt: skip
            answer = await sign_in(site, token)
            assert answer[0] == status, answer
            assert said in answer[1], answer


async def test_an_address_tries_few_wrong_tokens(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "_is_unlimited", lambda self, address: False)  # as from another machine
    monkeypatch.setattr(admission, "WRONG_TOKENS_BURST", 3.0)
    monkeypatch.setattr(admission, "WRONG_TOKENS_PER_S", 0.001)  # however long eight tries take
    async with visited(server_store, **STRICT) as site:
        answer = [await sign_in(site, "fq_operator_wrong") for _ in range(8)]
        assert [status for status, _ in answer[:3]] == [401] * 3
        assert answer[-1][0] == 429
        assert "too many wrong tokens" in answer[-1][1]


async def test_a_session_ends_by_itself_and_the_store_knows_no_cookie(site: Site) -> None:
    await site.read("/queues")
    cookie = site.browser.cookies[module.COOKIE]
    key = keys.session_key(cookie)
    with stores.connect(site.served.store_url) as client:
        assert 28_000 < client.ttl(key) <= 28_800
        kept = client.get(key)
    assert cookie not in key
    assert cookie.encode() not in kept
    site.forget()
    for wrong in ("", "x" * 43, "x" * 5_000):
        site.browser.cookies.set(module.COOKIE, wrong)
        answer = await site.browser.get("/queues")
        assert "set-cookie" in answer.headers  # --dev begins another one


async def test_a_post_without_the_sessions_secret_changes_nothing(site: Site) -> None:
    await site.read("/queues")
    for csrf in ({}, {"csrf": ""}, {"csrf": "0" * 64}, {"csrf": "ü"}):
        form = {"role": "tenant", "tenant": "ada", **csrf}
        answer = await site.browser.post("/do/create-token", data=form, headers=FORM)
        assert (answer.status_code, "of another session" in answer.text) == (403, True), csrf
    assert not await site.served.app.auth.tokens()
