"""What cannot be sent raises an error of Celery's; what may work later is tried again by its policy."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery
from celery.app.task import Context
from kombu.exceptions import OperationalError

import fairq.celery
from fairq.errors import FairqError
from tests.celery.conftest import get, served, variables_for, worker
from tests.cli.harness import read_until
from tests.stores import free_port

pytestmark = pytest.mark.deep("frameworks")


def refusal(url: str, **options: Any) -> tuple[OperationalError, str]:
    """Send a task; returns the error, and the code of its cause."""
    app = Celery("errors", broker=url)
    with closing(app), pytest.raises(OperationalError) as caught:
        app.send_task("shop.add", (1, 2), **({"headers": {"tenant": "acme"}} | options))
    cause = caught.value.__cause__
    return caught.value, cause.code if isinstance(cause, FairqError) else type(cause).__name__


def test_a_token_that_is_unknown_is_refused_at_once(port: int) -> None:
    assert refusal(f"fairq://:wrong@127.0.0.1:{port}")[1] == "unauthorized"


def test_a_tenant_must_be_named(port: int) -> None:
    error, code = refusal(f"fairq://:dev-producer@127.0.0.1:{port}", headers={})
    assert code == "bad_request"
    assert "tenant" in str(error)


@pytest.mark.parametrize("name", [{}, [], "a b", "x" * 129, "x" * 10_240, "a\0b", "acme/x"])
def test_a_header_that_names_no_tenant_is_refused_though_a_block_names_one(port: int, name: Any) -> None:
    with fairq.celery.tenant("acme"):
        error, code = refusal(f"fairq://:dev-producer@127.0.0.1:{port}", headers={"tenant": name})
    assert code == "bad_request"
    assert "tenant" in str(error)


def test_a_queue_needs_a_name_of_fairqs(port: int) -> None:
    error, code = refusal(f"fairq://:dev-producer@127.0.0.1:{port}", queue="Emails.high")
    assert code == "bad_request"
    assert "queue" in str(error)


def test_an_unknown_queue_is_refused_where_only_operators_create_queues(tmp_path: Path) -> None:
    with served(tmp_path, FAIRQ_QUEUE_QUOTA="0") as port:
        assert refusal(f"fairq://:dev-producer@127.0.0.1:{port}", queue="emials")[1] == "not_found"


def test_a_task_that_is_too_long_is_refused(port: int) -> None:
    assert refusal(f"fairq://:dev-producer@127.0.0.1:{port}", kwargs={"x": "x" * 2_000_000})[1] == "too_large"


def test_a_server_that_is_away_is_tried_again_by_celerys_policy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"fairq://:dev-producer@127.0.0.1:{taken.getsockname()[1]}"
        policy = {"max_retries": 2, "interval_start": 0, "interval_step": 0, "interval_max": 0}
        assert refusal(url, retry_policy=policy)[1] == "ConnectionRefusedError"


def test_a_worker_waits_for_its_server_and_a_sender_outlives_a_restart(tmp_path: Path, shop: Any) -> None:
    data, port = tmp_path / "data", free_port()
    variables = variables_for(port, Path(shop.app.conf.result_backend.removeprefix("file://")))
    with worker(variables, "-P", "solo", ready="Cannot connect to fairq://:**@") as early:
        app = Celery("sender", broker=variables["SHOP_BROKER"], backend=variables["SHOP_RESULTS"])
        with fairq.celery.tenant("acme"):
            with served(data, port):
                read_until(early, "ready.")
                assert get(app.send_task("shop.add", (1, 2))) == 3
            with served(data, port):
                assert get(app.send_task("shop.add", (3, 4))) == 7
        app.close()


def test_a_worker_with_a_token_that_is_unknown_ends_and_says_so(variables: dict[str, str]) -> None:
    wrong = variables | {"SHOP_BROKER": variables["SHOP_BROKER"].replace("dev-worker", "wrong")}
    with worker(wrong, "-n", "wrong@%h", ready="unauthorized") as process:
        assert process.wait(timeout=60) != 0


def test_a_result_backend_of_broker_queues_is_refused(port: int) -> None:
    app = Celery("rpc", broker=f"fairq://:dev-producer@127.0.0.1:{port}", backend="rpc://")
    request = Context(id="x", reply_to="c2f0a0de", correlation_id="x")
    with closing(app), pytest.raises(OperationalError, match="not declared"):
        app.backend.store_result("x", 1, "SUCCESS", request=request)
