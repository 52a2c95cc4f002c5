"""Bad input and bad days: each has one answer, ends nothing but its own request, and leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from fairq.errors import BY_CODE
from fairq.server.engine.net.admission import Admission
from fairq.server.run import Served
from fairq.server.web.http import bodies, bounds, listener, stream
from fairq.server.web.http.bounds import HEAD_BYTES
from fairq.server.web.http.problems import STATUS
from tests.server.harness import OPERATOR, WORKER, open_fds, raw
from tests.store.waiting import wait_until

from .harness import Client, api, check, check_problem, head, http_of, plain, read_all, read_until, serving

TASKS = "/v1/queues/q/tasks"
JSON = {"Content-Type": "application/json"}


async def check_healthy(served: Served) -> None:
    """Check that others are still served."""
    async with api(served, "dev-tenant:other") as other:
        check(await other.post(TASKS, json={"payload": 1}), 201)


def test_every_code_has_a_status() -> None:
    never_sent = {"closed", "bad_setting", "not_yet", "task_failed", "no_result", "tenants_refused"}
    assert BY_CODE.keys() - STATUS.keys() == never_sent


BAD_BODIES: list[tuple[bytes, dict[str, str], int, str, str]] = [
    (b"{", JSON, 400, "bad_frame", "column 2"),
    (b"[]", JSON, 400, "bad_frame", "one JSON object"),
    (b'{"payload": NaN}', JSON, 400, "bad_frame", "invalid JSON"),
    (b'{"payload": 1, "payload": 2}', JSON, 400, "bad_frame", "duplicate key"),
    (b'{"payload": 123456789012345678901234567890}', JSON, 400, "bad_frame", "64 bits"),
    (b'{"payload": ' + b"[" * 400 + b"]" * 400 + b"}", JSON, 400, "bad_frame", "deep"),
    (b'{"payload": "\xff"}', JSON, 400, "bad_frame", "UTF-8: byte 13"),
    (b"", JSON, 400, "bad_frame", "invalid JSON"),
    (b'{"tasks": []}', JSON, 400, "bad_request", "at least 1"),
    (b'{"tasks": 7}', JSON, 400, "bad_request", "list"),
    (b'{"tasks": [7]}', JSON, 400, "bad_request", "object"),
    (b'{"tasks": [{"payload": 1}], "delay": 5}', JSON, 400, "bad_request", "beside tasks"),
    (json.dumps({"tasks": [{"payload": 1}] * 501}).encode(), JSON, 413, "too_large", "500"),
    (b'{"payload": [' + b"1," * 250_000 + b"1]}", JSON, 413, "too_large", "too many values"),
    (b'{"payload": 1}\n{', {"Content-Type": "application/x-ndjson"}, 400, "bad_frame", "line 2"),
    (b"payload=1", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "wrong_type", "application/json"),
    (b'{"payload": 1}', {}, 415, "wrong_type", "application/json"),
    (b"{}", {"Content-Type": "application/json; charset=latin-1"}, 415, "wrong_type", "UTF-8"),
    (b"{}", {**JSON, "Content-Encoding": "br"}, 415, "wrong_type", "gzip"),
    (b"{}", {**JSON, "Content-Encoding": "gzip"}, 400, "bad_request", "not gzip"),
    (gzip.compress(b"{}", mtime=0)[:-3], {**JSON, "Content-Encoding": "gzip"}, 400, "bad_request", "whole"),
    (gzip.compress(b"{}", mtime=0) * 2, {**JSON, "Content-Encoding": "gzip"}, 400, "bad_request", "whole"),
]


async def test_a_bad_body_is_refused_where_it_is_bad(ada: Client) -> None:
    for body, headers, status, code, says in BAD_BODIES:
        answer = await ada.post(TASKS, content=body, headers=headers)
        assert says in answer.json()["detail"], answer.text
        check_problem(answer, status, code, answer.json().get("field"))
    assert check(await ada.get("/v1/queues/q/next"))["tasks"] == []


async def test_a_body_too_large_is_refused_and_its_client_reads_why(served: Served) -> None:
    long = b'{"payload": "' + b"x" * (3 << 20) + b'"}'
    content: Any = {"length": long, "payload": long[: 1500 << 10] + b'"}'}

    async def chunks() -> Any:
        for start in range(0, len(long), 65_536):
            yield long[start : start + 65_536]

    async with api(served) as ada:
        for kind in ("length", "chunks", "payload"):
            answer = await ada.post(TASKS, content=chunks() if kind == "chunks" else content[kind], headers=JSON)
            check_problem(answer, 413, "too_large", "payload" if kind == "payload" else "body")
            check(await ada.post(TASKS, json={"payload": 1}), 201)


@pytest.fixture
def inflated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the pieces that were inflated."""
    pieces: list[int] = []
    make: Callable[[int], Any] = zlib.decompressobj

    class Counting:
        def __init__(self, bits: int) -> None:
            self._inner = make(bits)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            piece: bytes = self._inner.decompress(data, most)
            pieces.append(len(piece))
            return piece

    monkeypatch.setattr(zlib, "decompressobj", Counting)
    return pieces


async def test_a_bomb_is_inflated_up_to_the_bound_only(served: Served, inflated: list[int]) -> None:
    async with api(served) as ada:
        bomb = gzip.compress(b" " * (8 << 20))
        answer = await ada.post(TASKS, content=bomb, headers={**JSON, "Content-Encoding": "gzip"})
        check_problem(answer, 413, "too_large", "body")
    assert sum(inflated) <= served.app.settings.message_bytes + 65_536


async def test_what_is_inflated_is_held_piece_by_piece_and_given_back(
    served: Served, inflated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_TENANT_BODIES_BYTES", 200_000)
    gzipped = {**JSON, "Content-Encoding": "gzip"}
    async with serving(served.store_url) as small_server, api(small_server) as ada:
        for _ in range(3):
            inflated.clear()
            small = gzip.compress(b'{"payload": 1}' + b" " * 1_000_000)
            check_problem(await ada.post(TASKS, content=small, headers=gzipped), 429, "too_many")
            assert 200_000 - 65_536 < sum(inflated) < 200_000 + 65_536  # no piece more than shows that it is too much
        fits = gzip.compress(b'{"payload": 1}' + b" " * 150_000)
        check(await ada.post(TASKS, content=fits, headers=gzipped), 201)


async def test_a_client_that_leaves_a_request_that_waits_is_no_refusal(served: Served) -> None:
    listener = http_of(served).listener
    claim = b'{"wait": 60}'
    async with api(served) as ada:
        check(await ada.post(TASKS, json={"payload": 1, "id": "t", "delay": 600}), 201)
    for request in (
        head("GET", f"{TASKS}/t?wait=60"),
        head("GET", "/v1/queues/q/events"),
        head("POST", "/v1/queues/q/claims", WORKER, Content_Type=JSON["Content-Type"], Content_Length="12") + claim,
    ):
        async with plain(served) as client:
            await client.send_all(request)
            await wait_until(lambda: len(_connections_of(served)) == 1)
        await wait_until(lambda: not listener.connections)
    assert not served.app.refusals.counts


async def test_a_body_that_stops_coming_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as brief:
        brief.setattr(bodies, "CHUNK_S", 0.1)
        brief.setattr(bodies, "LINGER_S", 0.1)
        async with plain(served) as stream:
            await stream.send_all(head("POST", TASKS, Content_Length="100", Content_Type="application/json") + b'{"pay')
            answer = await read_all(stream)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"not_in_time"' in answer
    await check_healthy(served)


async def test_a_body_that_trickles_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.3)
    monkeypatch.setattr(bodies, "LINGER_S", 0.1)
    answers = []
    async with plain(served) as stream, trio.open_nursery() as nursery:
        await stream.send_all(head("POST", TASKS, Content_Length="100000", Content_Type="application/json"))

        async def trickle() -> None:
            while True:
                await stream.send_all(b" ")
                await trio.sleep(0.01)

        nursery.start_soon(trickle)
        answers.append(await read_until(stream, b"not_in_time"))
        nursery.cancel_scope.cancel()
    assert answers[0].startswith(b"HTTP/1.1 408 ")


async def test_a_connection_whose_refused_body_goes_on_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_nothing(_: bodies.Inbox) -> None:
        """The time is up, and pieces wait."""
        await trio.testing.wait_all_tasks_blocked(0.05)

    monkeypatch.setattr(bodies.Inbox, "drain", read_nothing)
    async with plain(served) as stream, trio.open_nursery() as nursery:

        async def send() -> None:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(head("POST", TASKS, "wrong", Content_Length="100000000") + bytes(1 << 22))

        nursery.start_soon(send)
        await read_until(stream, b"unauthorized")
        with suppress(trio.BrokenResourceError):
            await read_all(stream)
        nursery.cancel_scope.cancel()


async def test_a_half_sent_head_and_a_silent_connection_are_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.2)
    async with serving(served.store_url) as quick, plain(quick) as silent, plain(quick) as half:
        await half.send_all(head("GET", f"{TASKS}/t")[:40])
        assert await read_all(silent) == b""
        check_only_answer(await read_all(half), 408, "not_in_time")


def check_only_answer(read: bytes, status: int, code: str) -> None:
    """Check that a connection brought one answer, with a code and the request's id, and then its end."""
    head, _, body = read.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nx-request-id: " in head.lower()
    assert json.loads(body)["code"] == code


async def test_a_head_of_another_version_is_answered_under_its_id_and_without_a_body_if_it_asks_for_none(
    served: Served,
) -> None:
    async with serving(served.store_url) as other, plain(other) as stream:
        await stream.send_all(b"HEAD / HTTP/2.0\r\nHost: x\r\nX-Request-Id: mine\r\n\r\n")
        answer, _, body = (await read_all(stream)).partition(b"\r\n\r\n")
        assert (answer[:13], b"x-request-id: mine" in answer, body) == (b"HTTP/1.1 505 ", True, b"")


NOISE: list[bytes] = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/queues/q/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    head("GET", "/v1/ws", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13",
         Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ=="),
    head("GET", "/v1/ws", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version="13",
         Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==") + b"x",
    head("GET", "/v1/\xe9%ff%00", None),
    head("GET", "http://evil.example/v1/x"),
    head("CONNECT", "evil.example:443"),
]  # fmt: skip


async def test_noise_ends_only_its_own_connection(served: Served) -> None:
    for noise in NOISE:
        async with plain(served) as stream:
            await stream.send_all(noise)
            with trio.move_on_after(1):
                answer = await stream.receive_some()
                assert b" 200 " not in answer[:20], answer
                assert b" 500 " not in answer[:20], answer
        await check_healthy(served)


async def test_an_address_has_so_many_connections_websockets_among_them(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "_is_unlimited", lambda self, address: False)  # loopback is, else
    answered = head("GET", f"{TASKS}/t")
    async with serving(server_store, connections_per_address=2) as served, raw(served, OPERATOR):
        async with plain(served) as first:
            await first.send_all(answered)
            assert b"404" in await read_until(first, b"\r\n\r\n")
            async with plain(served) as refused:
                with suppress(trio.BrokenResourceError):
                    await refused.send_all(answered)
                assert await read_all(refused) == b""
            await first.send_all(answered)  # those that were there go on
            assert b"404" in await read_until(first, b"\r\n\r\n")
        listener = http_of(served).listener
        await wait_until(lambda: not listener.connections)
        async with plain(served) as next_one:
            await next_one.send_all(answered)
            assert b"404" in await read_until(next_one, b"\r\n\r\n")


async def test_many_clients_that_connect_and_leave_leave_nothing_behind(served: Served) -> None:
    await check_healthy(served)
    await trio.testing.wait_all_tasks_blocked(0.05)
    tasks, fds = trio.lowlevel.current_statistics().tasks_living, open_fds()
    body = head("POST", TASKS, Content_Length="100", Content_Type="application/json") + b"{"
    waiting = head("GET", f"{TASKS}/t?wait=60")
    async with api(served) as ada:
        check(await ada.post(TASKS, json={"payload": 1, "id": "t"}), 201)
    for pieces in (b"", b"GET / HT", body, waiting, b"\xff" * 100):
        for _ in range(12):
            async with plain(served) as stream:
                if pieces:
                    await stream.send_all(pieces)
    await wait_until(lambda: open_fds() <= fds)
    await wait_until(lambda: trio.lowlevel.current_statistics().tasks_living <= tasks + 4)  # two tokens' connections


async def test_a_client_that_reads_nothing_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEND_S", 0.2)
    long = "x" * 900_000
    async with api(served) as ada:
        for n in range(20):
            check(await ada.post(TASKS, json={"payload": long, "id": f"t{n}"}), 201)
    async with plain(served) as client:
        await client.send_all(head("GET", "/v1/queues/q/next?count=20"))
        await client.receive_some(10)
        http = http_of(served).listener
        await wait_until(lambda: not http.connections)
    await check_healthy(served)


def _connections_of(served: Served) -> list[Any]:
    return [each for each in served.app.connections if each.owes_answers]


async def test_a_server_that_stops_answers_those_that_wait(server_store: str) -> None:
    answers = []
    async with serving(server_store) as served, api(served) as ada, api(served, WORKER) as worker:
        check(await ada.post(TASKS, json={"payload": 1, "id": "t", "delay": 600}), 201)

        async def wait() -> None:
            answers.append(await ada.get(f"{TASKS}/t", params={"wait": 60}))

        async def claim() -> None:
            answers.append(await worker.post("/v1/queues/q/claims", json={"wait": 60}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(claim)
            await wait_until(lambda: len(_connections_of(served)) == 2)
            await http_of(served).listener.stop()
            await served.app.drain(5)
    for answer in answers:
        check_problem(answer, 503, "draining")
        assert answer.headers["retry-after"]
    async with serving(server_store) as served, api(served) as ada:
        assert check(await ada.get(f"{TASKS}/t"))["state"] == "delayed"


async def test_a_server_that_is_killed_keeps_a_slow_reader_no_longer(server_store: str) -> None:
    async with serving(server_store) as served:
        async with api(served) as ada:
            for n in range(20):
                check(await ada.post(TASKS, json={"payload": "x" * 900_000, "id": f"t{n}"}), 201)
        client = await trio.open_tcp_stream(served.host, http_of(served).port)
        await client.send_all(head("GET", "/v1/queues/q/next?count=20"))
        await client.receive_some(10)
    await trio.aclose_forcefully(client)


async def test_headers_without_an_end_are_refused_beyond_their_bound(served: Served) -> None:
    begun = head("GET", "/v1/queues/q/next").removesuffix(b"\r\n")
    async with plain(served) as stream:
        await stream.send_all(begun + b"X: " + b"x" * (HEAD_BYTES // 2) + b"\r\n\r\n")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
    async with plain(served) as stream:
        await stream.send_all(begun + b"X: " + b"x" * HEAD_BYTES)
        assert (await read_all(stream)).startswith(b"HTTP/1.1 431 ")


async def test_no_path_no_method_and_what_a_path_can(ada: Client) -> None:
    check_problem(await ada.get("/v1/nothing"), 404, "not_found")
    check_problem(await ada.get("/"), 404, "not_found")
    check_problem(await ada.get(f"{TASKS}/"), 404, "not_found")
    wrong = await ada.patch(TASKS)
    check_problem(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    options = await ada.options(TASKS)
    assert (options.status_code, options.headers["allow"], options.content) == (204, "GET, HEAD, OPTIONS, POST", b"")
    check(await ada.post(TASKS, json={"payload": 1, "id": "t"}), 201)
    seen = await ada.head(f"{TASKS}/t")
    assert (seen.status_code, seen.content) == (200, b"")
    check_problem(await ada.get("/v1/queues/Bad/next"), 400, "bad_request", "queue")


async def test_browsers_are_refused_unless_their_origin_is_listed(server_store: str) -> None:
    origin = {"Origin": "https://app.example.com"}
    ask = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with serving(server_store) as served, api(served) as ada:
        check_problem(await ada.get("/v1/queues/q/next", headers=origin), 403, "forbidden")
        assert (await ada.options(TASKS, headers=ask)).status_code == 403
    async with serving(server_store, http_cors_origins=["https://app.example.com"]) as served, api(served) as ada:
        answer = await ada.get("/v1/queues/q/next", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "https://app.example.com"
        preflight = await ada.options(TASKS, headers=ask)
        assert preflight.status_code == 200
        assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
        refused = await ada.get(f"{TASKS}/never", headers=origin)
        check_problem(refused, 404, "not_found", "id")
        assert refused.headers["access-control-allow-origin"] == "https://app.example.com"
        for evil in ("https://evil.example", "https://[", "null"):
            check_problem(await ada.get("/v1/queues/q/next", headers={"Origin": evil}), 403, "forbidden")


async def test_a_name_that_points_here_is_refused_with_dev(product: Client) -> None:
    check_problem(await product.get("/v1/x", headers={"Host": "evil.example:7701"}), 421, "not_here")
    check_problem(await product.get("/v1/x", headers={"Host": "localhost:7701"}), 404, "not_found")


async def test_requests_of_a_tenant_have_bounds_and_others_do_not_feel_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "MAX_TENANT_WAITING", 2)
    async with serving(served.store_url) as served, api(served) as ada:
        check(await ada.post(TASKS, json={"payload": 1, "id": "t", "delay": 600}), 201)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(lambda: ada.get(f"{TASKS}/t", params={"wait": 60}))
            await wait_until(lambda: sum(len(each._waits) for each in served.app.connections) == 2)
            refused = await ada.get(f"{TASKS}/t", params={"wait": 60})
            assert check_problem(refused, 429, "too_many")["retry_in_ms"] == 1000
            assert refused.headers["retry-after"] == "1"
            await check_healthy(served)
            check(await ada.get(f"{TASKS}/t"))
            nursery.cancel_scope.cancel()
