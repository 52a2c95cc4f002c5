"""Which webhook a task is posted to, and what becomes of it where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from fairq.errors import BadRequest, TooLarge
from fairq.model.checks import check_full_id, check_known_id
from fairq.model.webhooks import SECRETS, URL, Webhook, choose, copy_id, read_copy_id, webhook_id, webhook_in
from fairq.webhook.addresses import AddressRules
from fairq.webhook.answers import Verdict
from fairq.webhook.deliverer import Target
from fairq.webhook.registrations import Policy, Registrations
from fairq.webhook.signature import Signer, tenant_secret, write_secret
from tests.store.cases import case

from .harness import task

SECRET, OTHER = write_secret(b"s" * 32), write_secret(b"o" * 32)
UNSIGNED = Policy(AddressRules(), unsigned=True)


def hook(
    url: str = "https://a.example/in", name: str = "", *, fan_out: bool = False, at: int = 1, **more: Any
) -> Webhook:
    """A webhook as a worker reads it."""
    return Webhook(webhook_id(url, name), url, name, fan_out, created_at_ms=at, **more)


ANY, NEWER = hook(at=1), hook("https://b.example/", at=2)
NAMED = hook("https://c.example/", "welcome", at=9)
COPYING = hook("https://d.example/", "welcome", fan_out=True, at=0)
COPYING_ANY = hook("https://e.example/", fan_out=True, at=0)


def test_a_task_is_posted_to_the_one_that_it_is_for_or_that_fits_best() -> None:
    for webhooks, name, id, expected in [
        ([], "", "", None),
        ([NAMED], "", "", None),
        ([NAMED], "Welcome", "", None),
        ([NEWER, ANY], "", "", ANY),
        ([NEWER, ANY, NAMED, COPYING], "welcome", "", NAMED),
        ([NEWER, ANY, NAMED, COPYING], "other", "", ANY),
        ([COPYING, COPYING_ANY], "welcome", "", COPYING),
        ([COPYING, COPYING_ANY], "", "", COPYING_ANY),
        ([COPYING_ANY, ANY], "welcome", "", ANY),
        ([ANY, NAMED], "", NAMED.id, NAMED),  # whatever its name was when it was enqueued
        ([ANY, NAMED], "", COPYING.id, None),
    ]:
        with case(webhooks, name, id, expected):
            assert choose(webhooks, name, id) == choose(reversed(webhooks), name, id) == expected


def test_ids_follow_from_url_and_name() -> None:
    assert webhook_id("https://a.example/in", "") == "a383cf1b"
    assert len({webhook_id(url, name) for url in ("https://a/", "https://b/") for name in ("", "n", "m")}) == 6


def test_the_id_of_a_copy_says_of_which_task_it_is_and_for_whom() -> None:
    id = copy_id("order-17", ANY.id, 1_700_000_000_123)
    assert check_known_id(id) == id
    assert check_full_id(f"{'+a' * 64}/{id}").endswith(id)
    assert (read_copy_id(id), webhook_in(id)) == (("order-17", ANY.id, 1_700_000_000_123), ANY.id)
    assert (read_copy_id(f"a+b/{id}"), webhook_in(f"a+b/{id}")) == (("a+b/order-17", *read_copy_id(id)[1:]), ANY.id)
    for plain in ("order-17", "a+3f2a81c0-1/order-17"):
        assert (read_copy_id(plain), webhook_in(plain)) == ((plain, "", 0), "")


def test_what_is_no_url_is_refused() -> None:
    for url in ["", "a.example", "ftp://a.example/", "https://", "https://a b", "https://a\n", 5, None]:
        with case(url), pytest.raises(BadRequest, match="url must be"):
            URL.check(url, "url")


def test_what_is_no_secret_is_refused_and_not_repeated() -> None:
    assert SECRETS.check([SECRET, OTHER], "secrets") == [SECRET, OTHER]
    for bad in ([SECRET] * 5, [SECRET[6:]], ["whsec_secret"], [SECRET + "="]):
        with pytest.raises(TooLarge if len(bad) > 1 else BadRequest) as caught:
            SECRETS.check(bad, "secrets")
        assert bad[0] not in caught.value.message


def found(registrations: Registrations, **of: Any) -> Target | Verdict:
    """Where a task is posted to."""
    return registrations.find(task(**of))


def test_a_task_that_no_webhook_takes_fails_and_says_why(logged: list[Any]) -> None:
    registrations = Registrations("emails", UNSIGNED)
    assert not registrations.is_active
    assert found(registrations) == Verdict("retry", reason="queue emails has no webhook for tasks without a name")
    for _ in range(2):
        registrations.update([])
        assert [line["event"] for line in logged] == ["no webhooks: `fairq webhooks add` registers one"]
    registrations.update([NAMED])
    assert found(registrations, name="bill") == Verdict(
        "retry", reason="queue emails has no webhook for tasks named bill"
    )
    assert isinstance(found(registrations, name="welcome"), Target)
    registrations.update([])
    assert found(registrations, webhook=NAMED.id) == Verdict("retry", reason=f"webhook {NAMED.id} was removed")


def test_a_task_is_copied_for_the_others_with_fan_out_that_take_its_name_and_a_copy_is_not() -> None:
    registrations = Registrations("emails", UNSIGNED)
    assert registrations.others(task()) == []
    paused = evolve(COPYING_ANY, is_paused=True)
    for webhooks, name, expected in [
        ([], "", []),
        ([ANY, NEWER, NAMED], "welcome", []),
        ([COPYING], "welcome", []),
        ([COPYING, paused], "welcome", [paused]),
        ([COPYING, paused], "", []),
        ([paused, ANY, COPYING], "welcome", [paused, COPYING]),
        ([paused, ANY, COPYING], "bill", [paused]),
    ]:
        registrations.update(webhooks)
        with case(webhooks, name, expected):
            assert registrations.others(task(name=name)) == sorted(it.id for it in expected)
            assert registrations.others(task(name=name, webhook=COPYING.id)) == []


def test_the_tasks_of_a_paused_webhook_are_postponed_for_longer_and_longer() -> None:
    registrations = Registrations("emails", UNSIGNED)
    registrations.update([evolve(ANY, is_paused=True)])
    assert not registrations.is_active
    verdicts = [found(registrations, attempt=attempt) for attempt in (1, 2, 6, 7, 4_000)]
    assert [verdict.delay for verdict in verdicts if isinstance(verdict, Verdict)] == [15, 30, 480, 600, 600]
    assert all(isinstance(it, Verdict) and it.outcome == "postponed" and "is paused" in it.reason for it in verdicts)
    registrations.update([evolve(ANY, is_paused=True), NEWER])
    assert registrations.is_active
    registrations.update([ANY, NEWER])
    assert isinstance(found(registrations), Target)


@pytest.mark.parametrize(
    ("policy", "url", "why"),
    [
        (Policy(AddressRules()), "https://a.example/", "missing secret"),
        (UNSIGNED, "http://a.example/", "--plaintext"),
        (UNSIGNED, "https://10.1.2.3/", "--allow-private"),
        (UNSIGNED, "https://user@a.example/", "user or password"),
        (evolve(UNSIGNED, allow_hosts=("*.b.example",)), "https://a.example/", "--allow-host"),
    ],
)
def test_what_this_worker_may_not_serve_waits_for_one_that_may(
    policy: Policy, url: str, why: str, logged: list[Any]
) -> None:
    registrations = Registrations("emails", policy)
    registrations.update([hook(url)])
    verdict = found(registrations)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, why in verdict.reason) == ("postponed", True)
    assert [(line["event"], why in line["reason"]) for line in logged] == [("webhook not served", True)]


def test_changes_are_logged_without_secrets_and_queries(logged: list[Any]) -> None:
    registrations = Registrations("emails", Policy(AddressRules(), signer=Signer.parse([SECRET])))
    url = "https://a.example/in?key=hidden"
    registrations.update([hook(url), NAMED])
    registrations.update([hook(url, secrets=(OTHER,)), NAMED])
    registrations.update([hook(url, secrets=(OTHER,), is_paused=True)])
    lines = [(line["event"], line.get("url"), line.get("name"), line.get("signed_by")) for line in logged]
    assert lines == [
        ("posting", "https://a.example/in", None, "the worker's secrets"),
        ("posting", "https://c.example/", "welcome", "the worker's secrets"),
        ("posting", "https://a.example/in", None, "its own secrets"),
        ("webhook paused", "https://a.example/in", None, "its own secrets"),
        ("webhook removed", None, None, None),
    ]
    assert "hidden" not in repr(logged)
    assert OTHER not in repr(logged) + repr(hook(url, secrets=(OTHER,)))


def test_its_own_secrets_sign_before_the_workers_and_tenants_have_their_own() -> None:
    policy = Policy(AddressRules(), signer=Signer.parse([SECRET]))
    for url, secrets, signing in [
        ("https://a.example/", (), b"s" * 32),
        ("https://a.example/", (OTHER,), b"o" * 32),
        ("https://{tenant}.a.example/", (), tenant_secret(b"s" * 32, "ada")),
        ("https://a.example/{tenant}", (OTHER,), tenant_secret(b"o" * 32, "ada")),
    ]:
        signer = policy.target_of(hook(url, secrets=secrets)).signer
        assert signer is not None
        assert signer.secrets_of("ada") == (signing,)
    assert UNSIGNED.target_of(hook()).signer is None


def test_plain_http_is_posted_to_if_it_was_asked_for(logged: list[Any]) -> None:
    registrations = Registrations("emails", evolve(UNSIGNED, plaintext=True))
    registrations.update([hook("http://a.example/")])
    assert isinstance(found(registrations), Target)
    assert [(line["event"], line["queue"], line["signed_by"]) for line in logged] == [("posting", "emails", "nothing")]
