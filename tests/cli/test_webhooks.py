"""`fairq webhooks`, and a webhook worker that serves them while they change: real processes, a real receiver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import Any

import orjson
import pytest

from fairq.model.checks import full_id
from fairq.model.tasks import NewTask
from fairq.model.webhooks import MAX_FAN_OUTS, copy_id, webhook_id
from fairq.webhook import BadSignature, verify
from fairq.webhook.signature import write_secret
from tests.store.waiting import wait_for
from tests.webhook.receiver import Receiver, Reply, Request, reply

from .harness import Commands, ServerThread, check_error, fairq_here, read_until, started
from .test_webhook import ended, receiving

SECRET, OTHER = write_secret(b"s" * 32), write_secret(b"o" * 32)


async def accept(_: Request) -> Reply:
    """Answer that it is done."""
    return reply()


@contextmanager
def posting(server: ServerThread, *queues: str, secret: str = SECRET) -> Iterator[Popen[str]]:
    """A webhook worker that serves what is registered."""
    with started(
        "webhook-worker", *queues, "--allow-private", "127.0.0.1", "--server", server.url, "--token", "dev-worker",
        "--log-json", extra={"FAIRQ_WEBHOOK_SECRET": secret},
    ) as worker:  # fmt: skip
        yield worker


def line_of(worker: Popen[str], *words: str) -> dict[str, Any]:
    """Read the worker's log up to a line that has all these words."""
    while True:
        line = read_until(worker, words[0])
        if all(word in line for word in words):
            found: dict[str, Any] = orjson.loads(line)
            return found


def url_of(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}/{path}"


def test_a_webhook_is_taken_up_changed_paused_and_removed_while_the_worker_runs(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"{OTHER}\n")
    with receiving(accept) as (receiver, port):
        url = url_of(port, "in")
        before = commands.enqueue("emails", '"waits"')
        with posting(server, "emails") as worker:
            assert line_of(worker, "no webhooks")["queue"] == "emails"
            assert commands("webhooks", "add", "emails", url).out == f"{url} in emails: created\n"
            assert commands("webhooks", "add", "emails", url).out == f"{url} in emails: unchanged\n"
            assert line_of(worker, "posting")["signed_by"] == "the worker's secrets"
            wait_for(lambda: server.state(before).state == "done")

            added = commands("webhooks", "add", "emails", url, "--secret-file", str(tmp_path / "secrets"))
            assert added.out == f"{url} in emails: changed\n"
            assert line_of(worker, "posting")["signed_by"] == "its own secrets"
            second = commands.enqueue("emails", '"signed anew"')
            wait_for(lambda: server.state(second).state == "done")

            commands("webhooks", "pause", "emails", url)
            line_of(worker, "webhook paused")
            (row,) = commands("webhooks", "list", "emails", "--json").json
            assert (row["url"], row["is_paused"], row["secret_count"], "secrets" in row) == (url, True, 1, False)
            app = server.served.app
            wait_for(lambda: not [each for each in app.connections if each.queues])  # it takes nothing more
            third = commands.enqueue("emails", '"after the pause"')
            assert server.state(third).state == "ready"
            commands("webhooks", "resume", "emails", url)
            wait_for(lambda: server.state(third).state == "done")

            assert commands("webhooks", "remove", "emails", url).out == f"{url} in emails: removed\n"
            line_of(worker, "webhook removed")
            assert commands("webhooks", "list", "emails").out == "queue emails has no webhooks\n"
            worker.terminate()
            assert worker.wait(30) == 0
    assert [request.body for request in receiver.requests] == [b'"waits"', b'"signed anew"', b'"after the pause"']
    first, later, _ = receiver.requests
    assert verify(first.body, first.headers, SECRET) == f"emails/ada/{before}"
    assert verify(later.body, later.headers, OTHER) == f"emails/ada/{second}"
    with pytest.raises(BadSignature):
        verify(later.body, later.headers, SECRET)


@pytest.mark.parametrize("way", ["registered", "one url"])
def test_a_burst_posts_what_is_ready_and_ends(commands: Commands, server: ServerThread, way: str) -> None:
    with receiving(accept) as (receiver, port):
        url = url_of(port, "in")
        ids = [commands.enqueue("emails", str(number)) for number in range(3)]
        later = commands.enqueue("emails", "9", "--delay", "3600")
        if way == "registered":
            for queue in ("emails", "images"):
                commands("webhooks", "add", queue, url)
            commands.enqueue("images", '"picture"')
            argv = ["emails", "images", "sounds"]  # which has no webhook
        else:
            argv = ["emails", "--url", url]
        done = fairq_here(
            "webhook-worker", *argv, "--burst", "--allow-private", "127.0.0.1", "--server", server.url,
            env={"FAIRQ_WEBHOOK_SECRET": SECRET, "FAIRQ_TOKEN": "dev-worker"},
        )  # fmt: skip
    assert done.code == 0, done.err
    pictures = [b'"picture"'] if way == "registered" else []
    assert sorted(request.body for request in receiver.requests) == [*pictures, b"0", b"1", b"2"]
    assert [server.state(id).state for id in [*ids, later]] == ["done"] * 3 + ["delayed"]


def ms_in(header: str) -> int:
    """When a task was enqueued, as its request says."""
    return round(datetime.fromisoformat(header).timestamp() * 1000)


def copies_in(receiver: Receiver, id: str, *urls: str) -> list[str]:
    """The ids of a task's copies for these URLs, once any of it was posted."""
    at = next(r.headers["fairq-enqueued-at"] for r in receiver.requests if r.headers["fairq-task"] == id)
    return [copy_id(id, webhook_id(url, ""), ms_in(at)) for url in urls]


def test_each_of_several_receivers_gets_a_task_and_is_retried_apart(commands: Commands, server: ServerThread) -> None:
    """One accepts, one refuses, and one is for another kind of task."""

    async def answer(request: Request) -> Reply:
        return reply(410) if request.target == "/refuses" else reply()

    with receiving(answer) as (receiver, port):
        accepts, refuses, bills = (url_of(port, path) for path in ("accepts", "refuses", "bills"))
        commands("webhooks", "add", "emails", accepts, "--fan-out")
        commands("webhooks", "add", "emails", refuses, "--fan-out")
        commands("webhooks", "add", "emails", bills, "--fan-out", "--name", "bill")
        with posting(server, "emails") as worker:
            assert len({line_of(worker, "posting")["url"] for _ in range(3)}) == 3
            id = commands.enqueue("emails", '"welcome"')
            wait_for(lambda: len(receiver.requests) == 2)
            (copy,) = copies_in(receiver, id, refuses)  # the task itself is for the oldest
            wait_for(lambda: server.state(id).state == "done")
            wait_for(lambda: ended(server, copy) == ("dead", "rejected", "127.0.0.1 answered 410"))
            (letter,) = commands("dead", "list", "emails", "--json").json
            assert (letter["id"], letter["webhook"]) == (full_id("ada", copy), webhook_id(refuses, ""))
            bill = commands.enqueue("emails", '"bill"', "--name", "bill")
            wait_for(lambda: len(receiver.requests) == 5)
            for each, state in zip(
                (bill, *copies_in(receiver, bill, accepts, refuses)), ("done", "done", "dead"), strict=True
            ):
                wait_for(lambda each=each, state=state: server.state(each).state == state)  # type: ignore[misc]
    posted = sorted((request.target, request.headers["fairq-task"]) for request in receiver.requests)
    assert posted == sorted(
        [("/accepts", id), ("/refuses", id), ("/accepts", bill), ("/refuses", bill), ("/bills", bill)]
    )
    assert {request.headers["webhook-id"] for request in receiver.requests} == {
        f"emails/ada/{id}",
        f"emails/ada/{bill}",
    }


@pytest.mark.deep("longest")
def test_the_longest_task_is_copied_for_as_many_as_there_may_be(commands: Commands, server: ServerThread) -> None:
    text = "x" * ((1 << 20) - 2)
    with receiving(accept) as (receiver, port):
        for n in range(MAX_FAN_OUTS):
            commands("webhooks", "add", "emails", url_of(port, f"{n}"), "--fan-out")
        commands("webhooks", "add", "emails", url_of(port, "own"))
        task = NewTask("ada/long", orjson.dumps(text))
        assert server.call(server.served.app.store.enqueue, "emails", "ada", [task]) == ["ok"]
        with posting(server, "emails"):
            wait_for(lambda: len(receiver.requests) == 1 + MAX_FAN_OUTS)
            wait_for(lambda: server.state("long").state == "done")
    assert {(request.headers["fairq-task"], request.body) for request in receiver.requests} == {("long", task.payload)}
    assert len({request.target for request in receiver.requests}) == 1 + MAX_FAN_OUTS


def test_a_worker_for_webhooks_says_what_is_missing() -> None:
    env = {"FAIRQ_TOKEN": "dev-worker"}
    check_error(fairq_here("webhook-worker", "emails", "emails", env=env), 2, "emails")
    check_error(fairq_here("webhook-worker", "emails", "images", "--name", "n" * 60, env=env), 2, "64")
