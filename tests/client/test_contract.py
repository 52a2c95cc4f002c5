"""The contract of the SDK: what its calls do, the same under asyncio, under trio and for threads."""

from __future__ import annotations

import errno
import socket
import ssl
import time
from contextlib import nullcontext
from typing import Any

import pytest

import fairq
from fairq.errors import BadRequest, OutcomeUnknown, SettingsError, Unauthorized, Unavailable
from tests.server.harness import OPERATOR, tenant
from tests.store.cases import case, raises_for
from tests.stores import free_port

from .runtimes import Api, Service, on_all, running_service, tls_url


async def nothing(task: fairq.Task) -> None:
    """Do a task that has nothing to be done."""


@on_all
async def test_what_is_enqueued_is_there_in_its_order(api: Api, service: Service) -> None:
    async with api.open_client(service.url, token=tenant("ada")) as client:
        assert not (await client.enqueue("emails", {"to": "ada"}, id="one")).is_duplicate
        assert (await client.enqueue("emails", {"to": "ada"}, id="one")).duplicate_of_state == "ready"
        ids = [task.id for task in await client.enqueue_many("emails", range(1_234))]
        assert [waiting.payload for waiting in await client.peek("emails", 3)] == [{"to": "ada"}, 0, 1]
        asked = [*reversed(ids), "nobody", ids[0]]
        found = await client.tasks("emails", asked)
        assert [state.id for state in found] == asked
        assert [state.state for state in found] == ["ready"] * 1_234 + ["unknown", "ready"]
        assert await client.reschedule("emails", [*ids, "nobody"], delay=60) == ["ok"] * 1_234 + ["gone"]
        assert await client.cancel("emails", ["nobody", *ids]) == ["gone"] + ["ok"] * 1_234
        assert await client.enqueue_many("emails", []) == []
        assert await client.tasks("emails", []) == await client.cancel("emails", []) == []
        with pytest.raises(BadRequest, match="queue"):
            await client.tasks("Emails", [])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients leave a silent server twenty times as soon."""
    for name, seconds in {"PROBE_S": 0.02, "WAIT_S": 0.2, "BESIDE_S": 0.1, "LEAVE_S": 0.3, "SPREAD_S": 0.0}.items():
        monkeypatch.setattr(f"fairq.wire.suspicion.{name}", seconds)
    monkeypatch.setattr("fairq.client.connect_steps.BESIDE_S", 0.1)
    monkeypatch.setattr("fairq.client.channel.random.sample", lambda targets, _: list(targets))


@on_all
async def test_calls_and_waits_on_a_half_open_connection_go_on_over_a_new_one(
    api: Api, service: Service, impatient: None
) -> None:
    app, results = service.worker(), list[Any]()
    app.task("emails")(nothing)
    async with (
        api.open_client(service.proxied, token=tenant("ada")) as client,
        api.open_client(service.url, token=tenant("ada")) as other,
    ):
        task = await client.enqueue("emails", 1, result_ttl=60)

        async def wait() -> None:
            results.append(await task.result(timeout=25))

        async def go_on() -> None:
            service.mute()
            await client.enqueue("others", 1, id="once", timeout=15)
            async with api.working(app):
                await other.task("emails", task.id).result(timeout=25)

        await api.together([wait, go_on])
        assert results == [None]
        assert [waiting.id for waiting in await other.peek("others", 3)] == ["once"]
    assert service.proxy.connections >= 2


@on_all
@pytest.mark.parametrize("frozen", [1, 2])
async def test_a_new_client_does_not_wait_for_a_server_that_takes_connections_and_says_nothing(
    frozen: int, api: Api, service: Service, impatient: None
) -> None:
    silent = [socket.create_server(("127.0.0.1", 0)) for _ in range(frozen)]
    try:
        urls = [f"ws://127.0.0.1:{each.getsockname()[1]}" for each in silent]
        async with api.open_client([*urls, service.url], token=tenant("ada")) as client:
            await client.enqueue("emails", 1, timeout=10)
            for each in silent:
                each.settimeout(10)
                with each.accept()[0] as left:
                    left.settimeout(10)
                    while left.recv(4_096):  # until it is closed
                        pass
    finally:
        for each in silent:
            each.close()


@on_all
async def test_another_program_gets_the_result_of_a_task_by_its_id(api: Api, service: Service) -> None:
    app = service.worker()
    app.task("emails")(nothing)
    async with api.open_client(service.url, token=tenant("ada")) as client:
        await client.enqueue("emails", 1, id="one", result_ttl=60)
    async with api.working(app), api.open_client(service.url, token=tenant("ada")) as other:
        task = other.task("emails", "one")
        assert await task.result(timeout=30) is None
        assert (await task.state()).state == "done"


@on_all
async def test_dead_letters_are_walked_and_replayed_at_a_rate(api: Api, service: Service) -> None:
    app, answers = service.worker(), ["reject"] * 5

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        if answers:
            raise fairq.Reject(answers.pop())

    async with api.open_client(service.url, token=tenant("ada")) as client:
        tasks = await client.enqueue_many("emails", range(5))
        await api.work(app)
        letters = client.dead_letters("emails")
        assert {letter.id async for letter in letters.walk()} == {task.id for task in tasks}
        began = time.monotonic()
        sweeps = [sweep async for sweep in letters.replay_all(rate=20)]
        assert time.monotonic() - began >= 0.19, "five at 20 a second, two in each step of 0.1 s"
        assert (sweeps[-1].changed, sweeps[-1].left) == (5, 0)
        await api.work(app)
        assert {(await task.state()).state for task in tasks} == {"done"}


@on_all
async def test_a_dead_letter_keeps_the_traceback_of_its_handler(api: Api, service: Service) -> None:
    app = service.worker()

    @app.task("emails")
    async def send(task: fairq.Task) -> None:
        raise fairq.Reject("no address") from KeyError("to")

    async with (
        api.open_client(service.url, token=tenant("ada")) as client,
        api.open_operator(service.url, token=OPERATOR) as operator,
    ):
        task = await client.enqueue("emails", {})
        await api.work(app)
        assert (await client.dead_letters("emails").show(task.id)).traceback == ""
        letter = await operator.dead_letters("emails").show(f"ada/{task.id}")
        assert letter.error == "no address"
        assert "KeyError: 'to'\n\nThe above exception was the direct cause" in letter.traceback
        assert letter.traceback.endswith("Reject: no address")


@on_all
async def test_an_operator_sees_all(api: Api, service: Service) -> None:
    async with (
        api.open_client(service.url, token=tenant("ada")) as client,
        api.open_operator(service.url, token=OPERATOR) as operator,
    ):
        await client.enqueue("emails", 1)
        assert [row.queue for row in await operator.queues()] == ["emails"]
        assert [row.tenant for row in await operator.tenants("emails")] == ["ada"]
        assert [step.cancelled async for step in operator.purging_queue("emails")][-1] == 1


@on_all
async def test_a_call_whose_reply_is_lost_is_repeated_and_makes_no_second(api: Api, service: Service) -> None:
    async with api.open_client(service.proxied, token=tenant("ada")) as client:
        await client.enqueue("emails", 0)
        service.soon(service.proxy.lose_next_reply)
        while service.proxy.lost == 0:
            await client.enqueue("emails", 1, id="one")
        service.soon(service.proxy.cut)
        await client.enqueue("emails", 2)
        assert [waiting.payload for waiting in await client.peek("emails")] == [0, 1, 2]


@on_all
async def test_a_silent_server_is_given_up_in_time(api: Api, service: Service) -> None:
    async with api.open_client(service.proxied, token=tenant("ada"), timeout=0.3) as client:
        await client.enqueue("emails", 0, timeout=20)
        service.hold()
        with pytest.raises(OutcomeUnknown):
            await client.enqueue("emails", 1)
        service.soon(service.proxy.release)
        await client.enqueue("emails", 2, timeout=20)


@on_all
async def test_no_server_is_unavailable_and_a_bad_token_unauthorized(api: Api, service: Service) -> None:
    async with api.open_client(f"ws://127.0.0.1:{free_port()}", token=tenant("ada")) as client:
        await api.unavailable(client, "refused")
    async with api.open_client(service.url, token="nonsense") as client:
        with pytest.raises(Unauthorized):
            await client.enqueue("emails", 1)
    async with api.open_client("ws://no-such-host.invalid", token=tenant("ada"), timeout=0.2) as client:
        with pytest.raises(Unavailable):
            await client.enqueue("emails", 1)


URLS: list[Any] = ["", "http://x", "ws://", "ws://x:port", "ws://[::1", "127.0.0.1:7700", []]
TOKENS = ["", " ", "two words", "tökén", "line\nbreak"]


@on_all
async def test_what_is_no_url_or_no_token_is_refused_at_once(api: Api) -> None:
    for field, url, token in [*(("url", url, "t") for url in URLS), *(("token", "ws://x", each) for each in TOKENS)]:
        with case(url, token), raises_for(field, SettingsError) as caught:
            async with api.open_client(url, token=token):
                pass
        assert field == "url" or not token.strip() or token not in caught.value.message


@pytest.mark.parametrize("first", ["dead", "silent", "unusable", "frozen"])
@on_all
async def test_the_next_address_is_tried_when_the_first_leads_nowhere(
    api: Api, service: Service, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    host, port = "127.0.0.9", int(service.url.rpartition(":")[2])

    class Socket(socket.socket):
        def connect_ex(self, address: Any) -> int:
            is_silent = first == "silent" and address[0] == host
            return errno.EINPROGRESS if is_silent else super().connect_ex(address)

    def find(*_: Any, **__: Any) -> list[tuple[Any, ...]]:
        found = [(9_999 if first == "unusable" else socket.AF_INET, host), (socket.AF_INET, "127.0.0.1")]
        return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (name, port)) for family, name in found]

    with socket.create_server((host, port)) if first == "frozen" else nullcontext():
        monkeypatch.setattr("fairq.client.connect_steps.ADDRESS_S", 0.05)
        monkeypatch.setattr("fairq.client.connect_steps.BESIDE_S", 0.1)
        monkeypatch.setattr("socket.socket", Socket)
        monkeypatch.setattr("socket.getaddrinfo", find)
        async with api.open_client(f"ws://two.example:{port}", token=tenant("ada")) as client:
            await client.enqueue("emails", 1, timeout=5)


@on_all
async def test_a_wss_url_of_a_server_without_tls_is_reported_as_that(api: Api, service: Service) -> None:
    async with api.open_client(tls_url(service), token=tenant("ada")) as client:
        await api.unavailable(client, "the server answered without TLS")


@on_all
async def test_tls_checks_the_certificate_and_carries_long_payloads(
    api: Api, server_store: str, certificate: tuple[str, str]
) -> None:
    trusting = ssl.create_default_context(cafile=certificate[0])
    with running_service(server_store, tls_cert=certificate[0], tls_key=certificate[1]) as service:
        url = tls_url(service)
        async with api.open_client(url, token=tenant("ada"), tls=trusting) as client:
            payloads = [str(number) * 200_000 for number in range(5)]
            await client.enqueue_many("emails", payloads)
            assert [waiting.payload for waiting in await client.peek("emails", 5)] == payloads
            app = fairq.Worker(url, "dev-worker", tls=trusting)
            app.task("emails")(nothing)
            await api.work(app)
            assert app.counts["done"] == 5
        async with api.open_client(url, token=tenant("ada")) as client:
            await api.unavailable(client, "certificate")
        async with api.open_client(url.replace("wss:", "ws:"), token=tenant("ada")) as client:
            await api.unavailable(client, "if it has a certificate, its URL is wss://")
