"""What Celery says of a task's time, order and end is the service's work, not the worker's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Celery
from celery.exceptions import OperationalError, TaskRevokedError
from kombu import Queue

import fairq.celery
import fairq.sync
from fairq.model.tasks import TaskState
from fairq.tokens import TokenRecord, hash_token, make_token
from fairq.wire.terms import Role
from tests.celery.conftest import get, served, variables_for, wait_for, worker
from tests.cli.harness import read_until

pytestmark = pytest.mark.deep("frameworks")


PROPERTIES: dict[str, Any] = {"delivery_info": {}}
NO_MESSAGES: list[Any] = [
    {"no": "message"},
    "text",
    None,
    {"body": "", "headers": [], "properties": PROPERTIES},
    {"body": "", "headers": {}, "properties": {"delivery_info": 5}},
    {"body": 5, "headers": {}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": ["shop.add"]}, "properties": PROPERTIES},
    {"body": "", "headers": {"id": {}}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": "shop.add", "id": "x", "stamped_headers": True}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": "shop.add", "id": "x", "stamped_headers": [{}]}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": "shop.add", "id": "x", "timelimit": [1]}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": "shop.add", "id": "x", "timelimit": ["1", None]}, "properties": PROPERTIES},
    {"body": "", "headers": {"task": "shop.add", "id": "x", "retries": "1"}, "properties": PROPERTIES},
    {"body": "", "headers": {}, "properties": PROPERTIES, "content-type": {}},
    {"body": "é", "headers": {}, "properties": PROPERTIES | {"body_encoding": "base64"}},
    {"body": "", "headers": {}, "properties": PROPERTIES | {"body_encoding": "rot13"}},
]


@pytest.fixture(autouse=True)
def for_acme() -> Iterator[None]:
    """Send all for one tenant."""
    with fairq.celery.tenant("acme"):
        yield


@contextmanager
def solo(variables: dict[str, str], queue: str, *options: str) -> Iterator[Popen[str]]:
    """Run a worker for one queue, with one task at a time in its main thread."""
    with worker(variables, "-P", "solo", "-n", f"{queue}@%h", "-Q", queue, *options) as process:
        yield process


def state(client: fairq.sync.Client, queue: str, sent: Any) -> TaskState:
    """Return how a task stands."""
    (found,) = client.tasks(queue, [sent.id])
    return found


def test_a_countdown_of_hours_outlives_every_restart_and_is_held_by_no_worker(tmp_path: Path, shop: Any) -> None:
    results = Path(shop.app.conf.result_backend.removeprefix("file://"))
    with served(tmp_path) as port:
        variables = variables_for(port, results)
        app = shop.Celery("sender", broker=variables["SHOP_BROKER"], backend=variables["SHOP_RESULTS"])
        with solo(variables, "celery"):
            sent = app.send_task("shop.seen", countdown=7200)
            assert get(app.send_task("shop.add", (1, 2))) == 3  # the worker is not full
    with (
        served(tmp_path, port),
        fairq.sync.open_client(f"ws://127.0.0.1:{port}", token="dev-tenant:acme") as acme,
        solo(variables, "celery"),
    ):
        assert state(acme, "celery", sent).state == "delayed"
        assert acme.reschedule("celery", [sent.id], delay=0) == ["ok"]
        assert get(sent)["eta"] is None
    app.close()


def test_an_expired_task_does_not_run(shop: Any, acme: fairq.sync.Client) -> None:
    for seconds in (0.3, 3, 30):
        sent = shop.seen.apply_async(queue="expiring", expires=seconds)
        row = acme.wait_task("expiring", sent.id, timeout=60)
        if row["state"] != "unknown":  # it was stored before it expired
            break
    assert (row["state"], row["reason"]) == ("dead", "expired")


def test_a_task_that_has_expired_before_it_is_sent_is_revoked_as_celerys_workers_do(shop: Any) -> None:
    with pytest.raises(TaskRevokedError, match="expired"):
        get(shop.seen.apply_async(expires=-1))


def test_a_higher_priority_comes_first_and_none_is_between(shop: Any, acme: fairq.sync.Client) -> None:
    sent = {p: shop.seen.apply_async(queue="urgent", priority=p) for p in (None, 1, 9, 5)}
    waiting = [task.id for task in acme.peek("urgent")]
    assert waiting == [sent[p].id for p in (9, 5, 1, None)]


def test_a_worker_holds_no_more_than_its_prefetch_count(
    shop: Any, acme: fairq.sync.Client, variables: dict[str, str], tmp_path: Path
) -> None:
    started, stop = tmp_path / "started", tmp_path / "stop"
    sent = [shop.until.apply_async((str(started), str(stop)), queue="held") for _ in range(4)]
    with worker(variables, "-n", "held@%h", "-Q", "held"):  # two processes, a multiplier of 1
        wait_for(lambda: started.exists() and len(started.read_text().split()) == 2)
        assert sorted(state(acme, "held", each).state for each in sent) == ["leased", "leased", "ready", "ready"]
        stop.touch()
        assert len({get(each) for each in sent}) == 1


def test_a_task_that_is_acknowledged_early_is_done_when_it_begins(
    shop: Any, acme: fairq.sync.Client, variables: dict[str, str], tmp_path: Path
) -> None:
    started, stop = tmp_path / "started", tmp_path / "stop"
    early = shop.app.tasks["shop.until_early"]
    sent = early.apply_async((str(started), str(stop)), queue="early")
    with worker(variables, "-n", "early@%h", "-Q", "early"):
        assert acme.wait_task("early", sent.id, timeout=60)["state"] == "done"
        wait_for(started.exists)
        stop.touch()
        get(sent)


def test_a_task_that_is_given_back_comes_again_and_loses_no_attempt(
    shop: Any, variables: dict[str, str], tmp_path: Path, operator: fairq.sync.OperatorClient
) -> None:
    operator.configure("again", max_attempts=1)
    sent = shop.refused.apply_async((str(tmp_path / "marks"),), queue="again")
    with solo(variables, "again"):
        assert get(sent) == 3


def test_a_task_that_is_rejected_is_a_dead_letter(
    shop: Any, variables: dict[str, str], acme: fairq.sync.Client
) -> None:
    sent = shop.never.apply_async(queue="refused")
    foreign = [acme.enqueue("refused", payload).id for payload in NO_MESSAGES]
    with solo(variables, "refused"):
        first, *others = (acme.wait_task("refused", id, timeout=60) for id in (sent.id, *foreign))
    assert (first["reason"], first["error"]) == ("rejected", "rejected by Celery")
    assert {row["error"] for row in others} == {"the payload is no message of Celery"}


def test_a_message_that_celery_cannot_read_is_a_dead_letter_and_its_worker_goes_on(
    shop: Any, variables: dict[str, str], acme: fairq.sync.Client
) -> None:
    message = {
        "body": "[1, 2, 3, 4]", "content-type": "application/json", "content-encoding": "utf-8",
        "headers": {"task": "shop.add", "id": "x"}, "properties": PROPERTIES,
    }  # fmt: skip
    unreadable = acme.enqueue("unreadable", message)
    sent = shop.add.apply_async((1, 2), queue="unreadable")
    with worker(variables, "-n", "unreadable@%h", "-Q", "unreadable"):
        row = acme.wait_task("unreadable", unreadable.id, timeout=60)
        assert (row["reason"], row["error"][:30]) == ("rejected", "Celery cannot read the message")
        assert get(sent) == 3


def test_a_lease_is_renewed_while_a_task_runs_in_the_main_thread(
    shop: Any, variables: dict[str, str], acme: fairq.sync.Client, operator: fairq.sync.OperatorClient, tmp_path: Path
) -> None:
    operator.configure("renewed", lease_ms=5000)
    started, stop = tmp_path / "started", tmp_path / "stop"
    sent = shop.until.apply_async((str(started), str(stop)), queue="renewed")
    with solo(variables, "renewed"):
        wait_for(lambda: state(acme, "renewed", sent).state == "leased")
        first = state(acme, "renewed", sent).at_ms
        wait_for(lambda: state(acme, "renewed", sent).at_ms > first + 2000)
        stop.touch()
        get(sent)
    assert started.read_text().split() == [sent.id]


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads"])
def test_the_tasks_of_a_killed_worker_run_elsewhere(
    shop: Any, variables: dict[str, str], tmp_path: Path, pool: str
) -> None:
    started, stop, queue = tmp_path / "started", tmp_path / "stop", f"killed-{pool}"
    options = ("-P", pool, "-Q", queue, *(["--max-tasks-per-child", "1"] if pool == "prefork" else []))
    with worker(variables, "-n", "killed@%h", *options) as killed:
        for _ in range(3):  # then processes have been forked off that may have the parent's connection
            get(shop.add.apply_async((1, 2), queue=queue))
        sent = shop.until.apply_async((str(started), str(stop)), queue=queue)
        wait_for(started.exists)
        killed.kill()
        with worker(variables, "-n", "other@%h", *options):
            wait_for(lambda: started.read_text().split() == [sent.id] * 2)
            stop.touch()
            assert get(sent).startswith("other@")


def test_a_warm_shutdown_ends_what_runs_and_gives_back_what_does_not(
    shop: Any, variables: dict[str, str], acme: fairq.sync.Client, tmp_path: Path
) -> None:
    started, stop = tmp_path / "started", tmp_path / "stop"
    many = [shop.until.apply_async((str(started), str(stop)), queue="warm") for _ in range(4)]
    with worker(variables, "-c", "1", "-n", "warm@%h", "-Q", "warm", "--prefetch-multiplier", "3") as process:
        read_until(process, "heard of a start")  # what has begun unheard is given back
        wait_for(started.exists)
        process.terminate()
        read_until(process, "Warm shutdown")
        stop.touch()
        process.communicate(timeout=60)
    ids = started.read_text().split()
    assert len(ids) == len(set(ids))
    expected = ["done" if each.id in ids else "ready" for each in many]
    wait_for(lambda: [state(acme, "warm", each).state for each in many] == expected)


def test_revoking_a_waiting_task_cancels_it(shop: Any, acme: fairq.sync.Client) -> None:
    sent = shop.seen.apply_async(queue="revoked", countdown=600)
    shop.app.amqp.queues.select_add("revoked")
    sent.revoke()
    assert state(acme, "revoked", sent).state == "cancelled"
    with pytest.raises(TaskRevokedError):
        get(sent)


def test_revoking_finds_a_task_beside_queues_with_names_that_fairq_does_not_have(
    shop: Any, acme: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OperationalError, match=r"not 'emails\.high'"):
        shop.seen.apply_async(queue="emails.high")
    assert "emails.high" in shop.app.amqp.queues
    sent = shop.seen.apply_async(queue="spelled", countdown=600)
    sent.revoke()
    assert state(acme, "spelled", sent).state == "cancelled"
    sent.revoke()  # it has ended
    shop.app.amqp.queues.pop("emails.high")


def test_revoking_asks_also_behind_a_queue_that_the_token_may_not_use(
    shop: Any, acme: fairq.sync.Client, operator: fairq.sync.OperatorClient, port: int, tmp_path: Path
) -> None:
    sent = [shop.seen.apply_async(queue=queue, countdown=600) for queue in ("other", "allowed")]
    id, token = make_token(Role.PRODUCER)
    operator.create_token(TokenRecord(id, "producer", hash_token(token), queues=["allowed"]))
    limited = Celery("limited", broker=f"fairq://:{token}@127.0.0.1:{port}", backend=f"file://{tmp_path}")
    limited.conf.task_queues = [Queue("other"), Queue("allowed")]
    limited.conf.broker_transport_options = {"tenant": "acme"}
    with closing(limited):
        limited.control.revoke(sent[1].id)
        assert state(acme, "allowed", sent[1]).state == "cancelled"
        with pytest.raises(OperationalError, match="forbidden"):
            limited.control.revoke(sent[0].id)
    assert state(acme, "other", sent[0]).state == "delayed"


def test_revoking_a_task_that_a_worker_holds_lets_it_not_begin(
    shop: Any, acme: fairq.sync.Client, variables: dict[str, str], tmp_path: Path
) -> None:
    started, stop = tmp_path / "started", tmp_path / "stop"
    shop.app.amqp.queues.select_add("reserved")
    with worker(variables, "-c", "1", "--prefetch-multiplier", "2", "-n", "reserved@%h", "-Q", "reserved"):
        runs, waits = (shop.until.apply_async((str(started), str(stop)), queue="reserved") for _ in range(2))
        wait_for(lambda: state(acme, "reserved", waits).state == "leased" and started.exists())
        waits.revoke()
        wait_for(lambda: state(acme, "reserved", waits).state == "cancelled")
        stop.touch()
        get(runs)
        with pytest.raises(TaskRevokedError):
            get(waits)
    assert started.read_text().split() == [runs.id]


def test_an_operator_who_drains_a_worker_shuts_it_down(
    variables: dict[str, str], operator: fairq.sync.OperatorClient
) -> None:
    with solo(variables, "drained") as process:
        wait_for(lambda: [row for row in operator.workers() if "drained" in row.queues])
        (name,) = {row.worker for row in operator.workers() if "drained" in row.queues}
        operator.drain_worker(name)
        assert process.wait(timeout=60) == 0


def test_other_remote_control_answers_nothing_and_fails_nothing(shop: Any) -> None:
    assert shop.app.control.inspect(timeout=0.1).active() is None
    assert shop.app.control.ping(timeout=0.1) == []
