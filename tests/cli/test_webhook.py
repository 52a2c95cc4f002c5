"""`fairq webhook-worker` as a process, against a real server and a real receiver; and what it refuses."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import orjson
import pytest
import trio

from fairq.webhook import verify
from fairq.webhook.signature import read_secret, tenant_secret, write_secret
from tests.store.waiting import wait_for
from tests.webhook.receiver import Answering, Receiver, Reply, Request, reply

from .harness import Commands, ServerThread, check_error, fairq, fairq_here, read_until, started

SECRET, OTHER = write_secret(b"s" * 32), write_secret(b"o" * 32)
URL = "https://hooks.example/in"
GIVEN = {"FAIRQ_WEBHOOK_SECRET": SECRET, "FAIRQ_TOKEN": "dev-worker"}


@contextmanager
def receiving(answer: Answering) -> Iterator[tuple[Receiver, int]]:
    """A receiver in a thread of its own, and its port."""
    receiver, ports, stop = Receiver(answer), [], []
    started = threading.Event()

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            stop.append(partial(trio.lowlevel.current_trio_token().run_sync_soon, nursery.cancel_scope.cancel))
            listeners = await nursery.start(partial(trio.serve_tcp, receiver.handle, 0, host="127.0.0.1"))
            ports.append(listeners[0].socket.getsockname()[1])
            started.set()

    thread = threading.Thread(target=trio.run, args=(serve,), name="receiver")
    thread.start()
    assert started.wait(30)
    try:
        yield receiver, ports[0]
    finally:
        stop[0]()
        thread.join(30)
        assert not thread.is_alive()


def ended(server: ServerThread, id: str) -> tuple[str, str, str]:
    """Return the state of a task, with the reason and the error if it is dead."""
    found = server.state(id)
    return found.state, found.reason, found.error


def test_tasks_are_posted_signed_and_settled_by_their_answers(
    commands: Commands, server: ServerThread, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"{SECRET}\n{OTHER}\n")
    may_answer = threading.Event()
    app = server.served.app

    async def answer(request: Request) -> Reply:
        if request.body == b'"slow"':
            await trio.to_thread.run_sync(may_answer.wait, 60)
        return {b'"gone"': reply(410), b'"later"': reply(503, retry_after="600")}.get(request.body, reply())

    with receiving(answer) as (receiver, port):
        words = ["ok", "gone", "later"]
        ids = {word: commands.enqueue("emails", f'"{word}"') for word in words}
        with started(
            "webhook-worker", "emails", "--url", f"http://127.0.0.1:{port}/{{tenant}}", "--allow-private", "127.0.0.1",
            "--secret-file", tmp_path / "secrets", "--server", server.url, "--token", "dev-worker", "--log-json",
            "images",
        ) as worker:  # fmt: skip
            lines = [orjson.loads(read_until(worker, '"ms":')) for _ in words]
            assert {line["task"]: (line["event"], line["status"]) for line in lines} == {
                ids["ok"]: ("delivered", 200), ids["gone"]: ("rejected", 410), ids["later"]: ("retry", 503)
            }  # fmt: skip
            wait_for(lambda: server.state(ids["ok"]).state == "done")
            host = "127.0.0.1"
            wait_for(lambda: ended(server, ids["gone"]) == ("dead", "rejected", f"{host} answered 410"))
            wait_for(lambda: ended(server, ids["later"]) == ("delayed", "", f"{host} answered 503"))

            slow = commands.enqueue("emails", '"slow"')
            wait_for(lambda: len(receiver.requests) == 4)
            worker.send_signal(signal.SIGTERM)
            (connection,) = (connection for connection in app.connections if connection.queues)
            wait_for(lambda: connection.account.credit == 0)
            unwanted = commands.enqueue("emails", '"unwanted"')
            may_answer.set()
            assert worker.wait(30) == 0
            assert (server.state(slow).state, server.state(unwanted).state) == ("done", "ready")
    adas = write_secret(tenant_secret(read_secret(OTHER), "ada"))
    for request in receiver.requests:
        assert request.target == "/ada"
        assert verify(request.body, request.headers, adas) == f"emails/ada/{request.headers['fairq-task']}"


def test_a_secret_is_printed_once_and_derived_for_tenants(tmp_path: Path) -> None:
    new = fairq_here("webhook-secret").out.strip()
    assert new.startswith("whsec_")
    assert len(read_secret(new)) == 32
    assert fairq_here("webhook-secret").out.strip() != new
    (tmp_path / "secrets").write_text(f"{new} {OTHER}")
    derived = "".join(write_secret(tenant_secret(read_secret(text), "ada")) + "\n" for text in (new, OTHER))
    assert fairq_here("webhook-secret", "ada", "--secret-file", tmp_path / "secrets").out == derived
    assert fairq_here("webhook-secret", "ada", env={"FAIRQ_WEBHOOK_SECRET": f"{new} {OTHER}"}).out == derived


REFUSED: dict[str, tuple[list[str], dict[str, str], str]] = {
    "no secret": ([], {"FAIRQ_WEBHOOK_SECRET": ""}, "FAIRQ_WEBHOOK_SECRET"),
    "a bad secret": ([], {"FAIRQ_WEBHOOK_SECRET": "whsec_short"}, "whsec_"),
    "a secret and unsigned": (["--unsigned"], {}, "--unsigned"),
    "no such file": (["--secret-file", "none"], {}, "none"),
    "an empty file": (["--secret-file", "/dev/null"], {}, "/dev/null"),
    "no token": ([], {"FAIRQ_TOKEN": ""}, "FAIRQ_TOKEN"),
    "a server's URL": (["--url", "ws://127.0.0.1:7700"], {}, "FAIRQ_URL"),
    "plain HTTP": (["--url", "http://hooks.example/"], {}, "https"),
    "a private address": (["--url", "https://10.0.0.1/"], {}, "--allow-private"),
    "metadata": (["--url", "https://169.254.169.254/"], {}, "link_local"),
    "a host that is not allowed": (["--allow-host", "*.hooks.example"], {}, "--allow-host"),
    "a bad pattern": (["--allow-host", "*"], {}, "--allow-host"),
    "a bad network": (["--allow-private", "10.0.0.1/8"], {}, "--allow-private"),
    "no time": (["--timeout", "0"], {}, "timeout"),
    "no slot": (["-c", "0"], {}, "concurrency"),
    "no slot at a host": (["--per-host", "0"], {}, "per_host"),
    "a negative length": (["--max-response", "-1"], {}, "max_response"),
    "a bad queue": (["Emails"], {}, "queue"),
    "a queue twice": (["emails"], {}, "emails already has a handler"),
}


@pytest.mark.parametrize(("argv", "env", "word"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_one_line_and_code_2(argv: list[str], env: dict[str, str], word: str) -> None:
    options = [] if "--url" in argv else ["--url", URL]
    done = fairq_here("webhook-worker", "emails", *options, *argv, env={**GIVEN, **env})
    check_error(done, 2, word)
    assert SECRET not in done.err


def test_a_worker_without_queues_says_so() -> None:
    check_error(fairq_here("webhook-worker", "--url", URL, env=GIVEN), 2, "missing queues")


def test_a_bad_server_is_reported_after_what_would_be_posted() -> None:
    argv = ("webhook-worker", "emails", "--url", f"{URL}?key=hidden", "--server", "http://127.0.0.1:7700")
    done = fairq(*argv, env=GIVEN)
    posting, error = done.err.strip().splitlines()
    assert "posting" in posting
    assert "hidden" not in posting
    assert (done.code, "ws://" in error) == (2, True)
