"""The id of a refused request, which its client and the server's log share."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from fairq.model.rates import Rate
from fairq.server.run import Served
from tests.server.harness import Raw, Refused, raw, running
from tests.server.web.http.harness import api, check_problem, serving


def logged(lines: list[Any], event: str = "refused") -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


async def break_(*_: Any) -> None:
    """Fail as no code should."""
    raise RuntimeError("planted")


async def test_a_refused_request_of_a_websocket_is_logged_by_session_and_ref(ada: Raw) -> None:
    with capture_logs() as lines, pytest.raises(Refused) as refused:
        await ada.ask("enqueue", queue="No", tasks=[])
    (line,) = logged(lines)
    assert line["request"] == f"{ada.welcome['session']}/{refused.value.frame['ref']}"
    assert (line["code"], line["tenant"], line["role"]) == ("bad_request", "ada", "tenant")
    with capture_logs() as lines:
        await ada.send("nonsense")
        await ada.receive()
    assert logged(lines)[0]["request"] == f"{ada.welcome['session']}/-"


async def test_an_internal_error_names_its_request(served: Served, ada: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(served.app.store), "peek", break_)
    with capture_logs() as lines, pytest.raises(Refused) as refused:
        await ada.ask("peek", queue="q", count=1)
    id = f"{ada.welcome['session']}/{ada.ref}"
    assert (refused.value.code, id in str(refused.value)) == ("internal", True)
    assert logged(lines, "request failed")[0]["request"] == id


async def test_http_requests_have_an_id_that_a_caller_may_bring(server_store: str) -> None:
    async with serving(server_store) as served, api(served) as ada:
        for brought, kept in (("abc-1/2", True), ("a" * 129, False), ("two words", False), ("\x7f", False)):
            with capture_logs() as lines:
                answer = await ada.get("/v1/queues/q/nowhere/9", headers={"X-Request-Id": brought})
            check_problem(answer, 404, "not_found")
            id = answer.headers["x-request-id"]
            assert (id == brought) == kept
            assert logged(lines)[0]["request"] == id
        assert (await ada.post("/v1/queues/q/tasks", json={"payload": 1})).headers["x-request-id"]


async def test_an_internal_error_over_http_names_its_request(
    server_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(server_store) as served, api(served) as ada:
        monkeypatch.setattr(type(served.app.store), "tasks", break_)
        with capture_logs() as lines:
            answer = await ada.get("/v1/queues/q/tasks/a")
            while not logged(lines, "request failed"):
                await trio.lowlevel.checkpoint()
        problem = check_problem(answer, 500, "internal")
        id = answer.headers["x-request-id"]
        assert id in problem["detail"]
        assert [line["request"] for line in logged(lines, "request failed")] == [id]


async def test_a_refused_handshake_is_logged_with_its_id(served: Served) -> None:
    with capture_logs() as lines, pytest.raises(BaseException, match=r"401|unknown"):
        async with raw(served, "fq_wrong"):
            raise AssertionError("it was let in")
    assert len(logged(lines, "connection refused")[0]["request"]) == 16


async def test_strangers_do_not_fill_the_log(server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairq.server.rated_log.LINES_PER_S", 1e-6)  # however long the test takes
    monkeypatch.setattr("fairq.server.rated_log.LINES_AT_ONCE", 2)
    async with running(server_store) as served:
        with capture_logs() as lines:
            for _ in range(3):
                with pytest.raises(BaseException, match=r"401|unknown"):
                    async with raw(served, "fq_wrong"):
                        raise AssertionError("it was let in")
    assert len(logged(lines, "connection refused")) == 2
    assert served.app.refusals.counts["unauthorized"] == 3


async def test_a_flood_of_refusals_does_not_fill_the_log(served: Served, ada: Raw) -> None:
    served.app.refusals.log._rate = Rate(1e-6, 50)  # however long the test takes
    with capture_logs() as lines:
        for _ in range(60):
            with pytest.raises(Refused):
                await ada.ask("enqueue", queue="No", tasks=[])
    assert len(logged(lines)) == 50
    assert served.app.refusals.counts["bad_request"] == 60
    served.app.refusals.log._rate = Rate(1, 1)
    with capture_logs() as lines, pytest.raises(Refused):
        await ada.ask("enqueue", queue="No", tasks=[])
    assert logged(lines)[0]["unlogged"] == 10
