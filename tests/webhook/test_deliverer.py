"""Tasks are posted: what is sent, what the answers do, and how long anything may take. Virtual time, no sockets."""

from __future__ import annotations

import socket
from email.utils import formatdate
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest
import trio
from attrs import evolve

import fairq
from fairq.client.links import Links
from fairq.errors import BadRequest, QuotaExceeded, SettingsError, StoreFull
from fairq.model.tasks import MAX_ATTEMPTS, NewTask
from fairq.webhook import deliverer as module
from fairq.webhook import verify
from fairq.webhook.deliverer import Delivery, Target, open_deliverer
from fairq.webhook.network import CheckedNetwork
from fairq.webhook.signature import Signer, read_secret, tenant_secret, write_secret
from fairq.webhook.urls import UrlTemplate
from tests.store.cases import case, raises_for

from .harness import DELIVERY, LOOPBACK, NOW, OTHER_PUBLIC, PUBLIC, TLS, Bench, bench, resolving, task, to
from .receiver import Receiver, Reply, Request, answering, reply, silent

SECRET = write_secret(b"s" * 32)


async def test_a_task_is_posted_with_all_that_is_known_of_it(autojump_clock: object) -> None:
    signer = Signer.parse([SECRET])
    async with bench(Receiver(), "http://hooks.example:8080/in?key=1", signer=signer) as bench_:
        assert await bench_.deliver({"to": ["ada", "é", 1.5]}, attempt=2, tenant="Ada.L@acme+1") is None
        (request,) = bench_.receiver.requests
    assert (request.method, request.target) == ("POST", "/in?key=1")
    assert request.body == '{"to":["ada","é",1.5]}'.encode()
    name = "emails/Ada%2EL@acme+1/t1"  # a full stop would part the signed text
    assert verify(request.body, request.headers, SECRET, now=NOW) == name
    del request.headers["webhook-signature"]
    agent = request.headers.pop("user-agent")
    assert agent.startswith("fairq/")
    assert request.headers == {
        "host": "hooks.example:8080",
        "content-type": "application/json",
        "content-length": str(len(request.body)),
        "accept-encoding": "identity",
        "idempotency-key": name,
        "fairq-task": "t1",
        "fairq-queue": "emails",
        "fairq-tenant": "Ada.L@acme+1",
        "fairq-attempt": "2",
        "fairq-max-attempts": "5",
        "fairq-enqueued-at": "2023-11-14T22:13:20.123Z",
        "webhook-id": name,
        "webhook-timestamp": "1700000000",
    }


async def test_a_tenant_with_a_url_of_its_own_has_a_secret_of_its_own(autojump_clock: object) -> None:
    signer = Signer.parse([SECRET], is_per_tenant=True)
    async with bench(Receiver(), "http://hooks.example/{tenant}", signer=signer) as bench_:
        await bench_.deliver(tenant="bob")
        (request,) = bench_.receiver.requests
    bobs = write_secret(tenant_secret(read_secret(SECRET), "bob"))
    assert verify(request.body, request.headers, bobs, now=NOW) == "emails/bob/t1"


async def test_the_answer_is_the_result(autojump_clock: object, logged: list[Any]) -> None:
    body = reply(201, b'{"sent":1}', content_type="application/json")
    async with bench(Receiver(answering(body))) as bench_:
        assert await bench_.deliver() == {"sent": 1}
    (line,) = logged
    assert line == {
        "event": "delivered", "log_level": "info", "task": "t1", "queue": "emails", "tenant": "ada", "attempt": 1,
        "host": "hooks.example", "status": 201, "ms": 0.0,
    }  # fmt: skip


async def test_a_name_arrives_whatever_spaces_it_has(autojump_clock: object) -> None:
    for name, sent in [
        (" ", "%20"), ("  ", "%20%20"), (" a b ", "%20a b%20"), ("  a", "%20 a"), ("a  ", "a %20"),
        ("%20", "%2520"), ("\u00e9 %", "%C3%A9 %25"), ("a b", "a b"), ("~\x7f", "~%7F"), ("[\x1f]", "[%1F]"),
    ]:  # fmt: skip
        with case(name, sent):
            async with bench(Receiver()) as bench_:
                await bench_.deliver(name=name)
                (request,) = bench_.receiver.requests
            assert request.headers["fairq-name"] == sent
            assert unquote(request.headers["fairq-name"]) == name


def copying(log: list[str], *refusals: Exception) -> Links:
    """Where copies are enqueued, with the refusals of the first ones."""
    left = list(refusals)

    async def enqueue(queue: str, new: NewTask) -> str:
        await trio.lowlevel.checkpoint()
        if left:
            raise left.pop(0)
        log.append(f"{queue} {new.id} {new.payload.decode()} {new.name} {new.max_attempts} {new.expires_at_ms}")
        return "duplicate" if "b" in new.id else "ok"

    return Links("emails", "ada/t1", 1_700_000_000_123, enqueue)


async def test_a_task_is_copied_for_other_webhooks_before_it_is_posted(autojump_clock: object) -> None:
    seen = list[str]()

    async def answer(_: Request) -> Reply:
        await trio.lowlevel.checkpoint()
        seen.append("posted")
        return reply()

    async with bench(Receiver(answer), others=lambda _: ("0000000a", "0000000b")) as bench_:
        await bench_.deliver([1], name="bill", links=copying(seen), expires_at_ms=1_800_000_000_000)
    copies = [f"emails t1+{webhook}-1700000000123 [1] bill 5 1800000000000" for webhook in ("0000000a", "0000000b")]
    assert seen == [*copies, "posted"]


async def test_a_copy_has_no_more_attempts_than_any_task_may(autojump_clock: object) -> None:
    """Attempts that do not count raise what a task has."""
    seen = list[str]()
    async with bench(Receiver(), others=lambda _: ("0000000a",)) as bench_:
        await bench_.deliver(max_attempts=MAX_ATTEMPTS + 3, links=copying(seen))
    assert seen == [f"emails t1+0000000a-1700000000123 null  {MAX_ATTEMPTS} None"]


async def test_a_task_whose_copies_have_no_room_waits_and_is_posted_by_nobody(
    autojump_clock: object, logged: list[Any]
) -> None:
    seen = list[str]()
    full = QuotaExceeded("the tenant has reached its limit queued", field="queued")
    async with bench(Receiver(), others=lambda _: ("0000000a",)) as bench_:
        for error, delay_ms in ((full, 5_000), (QuotaExceeded("the limit", retry_in_ms=1_500), 1_500)):
            with pytest.raises(fairq.Postpone, match="no room for its copies: the") as caught:
                await bench_.deliver(links=copying(seen, error))
            assert caught.value.delay_ms == delay_ms
            assert (logged[-1]["log_level"], logged[-1]["reason"]) == ("debug", str(caught.value))
        with pytest.raises(StoreFull):  # as of any handler: this attempt fails
            await bench_.deliver(links=copying(seen, StoreFull("full")))
        with pytest.raises(BadRequest, match="would expire"):
            await bench_.deliver(links=Links("emails", "ada/t1", 0, _expired))
        assert (seen, bench_.receiver.requests) == ([], [])


async def _expired(*_: Any) -> str:
    await trio.lowlevel.checkpoint()
    return "expired"


async def test_a_copy_says_whose_it_is_and_when_that_was_enqueued(autojump_clock: object) -> None:
    async with bench(Receiver()) as bench_:
        await bench_.deliver(id="t1+0000000a-1600000000000")
        (request,) = bench_.receiver.requests
    found = [request.headers[name] for name in ("fairq-task", "webhook-id", "fairq-enqueued-at")]
    assert found == ["t1", "emails/ada/t1", "2020-09-13T12:26:40.000Z"]


@pytest.mark.parametrize(
    ("answer", "event", "delay_ms"),
    [
        (reply(410), "rejected", None),
        (reply(503, b"busy", retry_after="17"), "retry", 17_000),
        (reply(503, retry_after=formatdate(NOW + 90, usegmt=True)), "retry", 90_000),
    ],
    ids=["gone", "busy", "busy until then"],
)
async def test_gone_rejects_and_any_other_answer_is_tried_again_when_it_says(
    answer: Reply, event: str, delay_ms: int | None, autojump_clock: object, logged: list[Any]
) -> None:
    reason = f"hooks.example answered {answer.status}"
    async with bench(Receiver(answering(answer))) as bench_:
        with pytest.raises(fairq.Retry if delay_ms else fairq.Reject, match=reason) as caught:
            await bench_.deliver()
    assert getattr(caught.value, "delay_ms", None) == delay_ms
    assert [(line["event"], line["status"], line["reason"]) for line in logged] == [(event, answer.status, reason)]


async def test_a_host_that_refuses_or_has_no_address_is_tried_again(autojump_clock: object) -> None:
    async def nobody(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    for resolve, words in (
        (resolving(["1.1.1.1"]), "connection refused"),
        (resolving([]), "no address"),
        (nobody, "Name or service not known"),
    ):
        async with bench(Receiver(), resolve=resolve) as bench_:
            with pytest.raises(fairq.Retry, match=words):
                await bench_.deliver()


async def test_the_reason_names_what_the_first_of_a_hosts_addresses_answered() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/in"
        async with open_deliverer(to(url), DELIVERY, CheckedNetwork(LOOPBACK), TLS) as deliverer:
            with trio.fail_after(30), pytest.raises(fairq.Retry, match=r"cannot be reached: .*Connection refused"):
                await deliverer.deliver(task())


async def test_a_long_answer_is_a_success_without_a_result(autojump_clock: object) -> None:
    for length, result in [(100, "x" * 100), (101, None), (1_000_000, None)]:
        for is_chunked in [True, False]:
            with case(length, result, is_chunked):
                headers = {"transfer-encoding": "chunked"} if is_chunked else {"content-length": str(length)}
                async with bench(Receiver(answering(Reply(200, headers, [b"x" * length]))), max_response=100) as bench_:
                    assert await bench_.deliver() == result
                    is_kept = bool(bench_.deliverer.pool.connections)  # what is not read to its end is closed
                    assert is_kept == (result is not None)


UNFIT: dict[str, tuple[bytes, bytes]] = {
    "deep": (b"application/json", b"[" * 300 + b"]" * 300),
    "longer as JSON": (b"text/plain", b"\x01" * 50_000),
}


@pytest.mark.parametrize(("kind", "body"), UNFIT.values(), ids=UNFIT)
async def test_an_answer_that_is_no_result_does_not_spoil_the_delivery(
    kind: bytes, body: bytes, autojump_clock: object, logged: list[Any]
) -> None:
    async with bench(Receiver(answering(reply(200, body, content_type=kind.decode())))) as bench_:
        assert await bench_.deliver(wants_result=True) is None
        assert [line["event"] for line in logged] == ["delivered", "result not kept"]
        assert await bench_.deliver() is not None  # and none was asked
    assert len(logged) == 3


async def test_no_more_go_to_a_host_at_once_than_allowed(autojump_clock: object) -> None:
    running: dict[str, int] = {}
    most: dict[str, int] = {}

    async def count(request: Request) -> Reply:
        host = request.headers["host"]
        running[host] = running.get(host, 0) + 1
        most[host] = max(most.get(host, 0), running[host])
        await trio.sleep(1)
        running[host] -= 1
        return reply()

    async def deliver(bench_: Bench, tenant: str, at: float) -> None:
        await trio.sleep(at)
        await bench_.deliver(tenant=tenant)

    async with bench(Receiver(count), "http://{tenant}.hooks.example/", per_host=2, timeout=1.5) as bench_:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for at in (0, 0.5, 1.25, 1.25, 1.25, 1.25):  # at 1.25 one is under way, and none waits
                for tenant in ("ada", "bob"):
                    nursery.start_soon(deliver, bench_, tenant, at)
        assert trio.current_time() - began == pytest.approx(3.5)  # waiting for a turn is no part of the timeout
        assert len(bench_.deliverer.hosts) == 0
    assert most == {"ada.hooks.example": 2, "bob.hooks.example": 2}


async def test_any_number_of_hosts_is_posted_to_at_once(autojump_clock: object) -> None:
    url = "http://{tenant}.hooks.example/"
    async with bench(Receiver(silent), url, per_host=1) as bench_, trio.open_nursery() as nursery:
        for n in range(150):
            nursery.start_soon(partial(bench_.deliver, tenant=f"t{n}"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench_.receiver.requests) == 150
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("limit", "connections"), [({}, 2), ({"MAX_IDLE": 1}, 3), ({"KEEP_ALIVE_S": 0.0}, 4)])
async def test_so_many_connections_are_kept_and_so_long(
    limit: dict[str, Any], connections: int, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(module, name, value)
    async with bench(Receiver(), "http://hooks.example/{tenant}") as bench_:
        for tenant in ("ada", "ada", "bob", "ada"):
            await bench_.deliver(tenant=tenant)
        assert bench_.receiver.connections == connections


async def test_a_task_that_is_cancelled_while_it_waits_leaves_no_trace(autojump_clock: object) -> None:
    async with bench(Receiver(silent), per_host=1) as bench_:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench_.deliver)
            nursery.start_soon(bench_.deliver)
            await trio.testing.wait_all_tasks_blocked()
            assert len(bench_.receiver.requests) == 1
            nursery.cancel_scope.cancel()
        assert len(bench_.deliverer.hosts) == 0
        assert not bench_.deliverer.pool.connections


@pytest.mark.parametrize("addresses", [[PUBLIC, "10.0.0.1"], ["fe80::1%eth0", PUBLIC]])
async def test_a_host_with_any_address_that_is_refused_is_not_connected_to(
    addresses: list[str], autojump_clock: object, logged: list[Any]
) -> None:
    async with bench(Receiver(), resolve=resolving(addresses)) as bench_:
        with pytest.raises(fairq.Retry, match=r"hooks\.example has a refused address"):
            await bench_.deliver()
        assert bench_.network.dialled == []
    assert [line["event"] for line in logged] == ["retry"]


async def test_a_second_address_is_tried_when_the_first_is_away(autojump_clock: object) -> None:
    both = resolving([OTHER_PUBLIC, PUBLIC])
    async with bench(Receiver(), resolve=both) as bench_:
        await bench_.deliver()
        assert bench_.network.dialled == [(OTHER_PUBLIC, 80), (PUBLIC, 80)]
    async with bench(Receiver(), resolve=both, slow=frozenset({OTHER_PUBLIC}), timeout=6) as bench_:
        await bench_.deliver()
        assert bench_.network.dialled == [(OTHER_PUBLIC, 80), (PUBLIC, 80)]


async def test_a_tenant_whose_host_is_not_allowed_is_rejected(autojump_clock: object, logged: list[Any]) -> None:
    template = UrlTemplate.parse("https://{tenant}.hooks.example/", ["ada.hooks.example"])
    async with bench(Receiver(), find=lambda _: Target(template)) as bench_:
        with pytest.raises(fairq.Reject, match=r"bob\.hooks\.example is not in --allow-host"):
            await bench_.deliver(tenant="bob")
        assert bench_.network.dialled == []
    assert [(line["event"], line["tenant"]) for line in logged] == [("rejected", "bob")]


def test_limits_that_cannot_be_kept_are_refused() -> None:
    cases: list[tuple[dict[str, Any], type[Any], str]] = [
        ({"timeout": 0}, SettingsError, "timeout"),
        ({"timeout": -1}, SettingsError, "timeout"),
        ({"timeout": float("nan")}, SettingsError, "timeout"),
        ({"timeout": float("inf")}, SettingsError, "timeout"),
        ({"timeout": 3_601}, SettingsError, "timeout"),
        ({"per_host": 0}, BadRequest, "per_host"),
        ({"max_response": -1}, BadRequest, "max_response"),
        ({"max_response": (1 << 18) + 1}, BadRequest, "max_response"),
    ]
    for settings, error, field in cases:
        with case(settings, error, field), raises_for(field, error):
            evolve(DELIVERY, **settings).check()
    for least_or_most in [(0.1, 1, 0), (3_600, 500, 1 << 18)]:
        Delivery(*least_or_most).check()
