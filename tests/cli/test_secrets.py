"""No log and no error has a token, a payload, a webhook's secret or the store's password, on good days and bad ones."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trio

from fairq.tokens import make_token
from fairq.webhook.signature import write_secret
from fairq.wire.terms import Role
from tests import stores
from tests.cli.test_webhook import receiving
from tests.sending import send_message
from tests.server.harness import raw
from tests.webhook.receiver import Reply, Request, reply

from .harness import EXIT_SECONDS, Finished, fairq, fairq_here, started

PASSWORD, PAYLOAD = "planted-password-of-the-store", "planted-payload-of-a-task"
SECRET = write_secret(b"planted-webhook-secret-in-bytes!")
HEARD = (  # of each process, from its first line to its last: without them this test would hear nothing
    *("serving", "refused", "unknown token", "worker attached", "store connection lost", "draining", "stopped"),
    *("task failed", "answered 500", "invalid payload", "invalid webhook secret", "invalid store URL"),
)

APP = """
import fairq

app = fairq.Worker()

@app.task("emails")
def send(task):
    raise fairq.Retry(delay=0) if task.attempt == 1 else RuntimeError("it failed")

@app.task("done")
def done(task):
    return task.payload
"""


class Heard:
    """All that the processes wrote."""

    def __init__(self, run: Callable[..., Finished]) -> None:
        self.texts: list[str] = []
        self._run = run

    def run(self, *argv: str | Path, code: int, cwd: Path | None = None, **env: str) -> Finished:
        """Run a command to its end; what it printed as its answer is not a log."""
        done = self._run(*argv, env=env, cwd=cwd)
        assert done.code == code, (argv, done)
        self.texts.append(done.err)
        return done

    @contextmanager
    def running(self, *argv: str | Path, until: str, cwd: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
        """Run a process while the block lasts, and hear its output to the end."""
        with started(*argv, cwd=cwd, extra={"FAIRQ_TOKEN": "", **env}) as process:
            assert process.stdout is not None
            for line in process.stdout:
                self.texts.append(line)
                if until in line:
                    break
            yield process
            process.terminate()
            out, _ = process.communicate(timeout=EXIT_SECONDS)
            self.texts.append(out)


def url_in(line: str, name: str) -> str:
    """The URL that the line `serving` has under a name, in either format."""
    plain = line.replace('": "', "=").replace('"', " ").replace(",", " ")
    return next(word for word in plain.split() if word.startswith(f"{name}=")).partition("=")[2]


def token_of(heard: Heard, store: str, *argv: str) -> str:
    return heard.run("tokens", "create", *argv, code=0, FAIRQ_STORE=store).out.strip().splitlines()[-1]


async def say_nonsense(url: str, token: str) -> None:
    """Send what the server refuses, with the planted words in every place that a client can choose."""
    with trio.fail_after(30):
        async with raw(url, token) as client:
            for payload in ({"a": PAYLOAD}, PAYLOAD):
                task, good = {"id": "x" * 300, "payload": payload}, {"id": "x", "payload": payload}
                for of in (task, good | {PAYLOAD: 1}, good | {"delay_ms": PAYLOAD}, good | {"id": f"{PAYLOAD} "}):
                    for wrong in ({"queue": "No"}, {"queue": "emails"}, {"queue": "emails", PAYLOAD: 1}):
                        with pytest.raises(Exception, match="bad_request"):
                            await client.ask("enqueue", tasks=[of], **wrong)
            await send_message(client.transport, f'{{"type": "{PAYLOAD}", "ref": 99}}'.encode())
            await client.receive()


def misuse(url: str, http: str, good: str, bad: str, heard: Heard) -> None:
    """Do over websockets, HTTP and the command line what is refused."""
    trio.run(say_nonsense, url, good)
    for token in (good, bad):
        headers = {"Authorization": f"Bearer {token}", "X-Request-Id": f"{PAYLOAD}\x7f"}
        for body in (f'{{"payload": "{PAYLOAD}"', f'"{PAYLOAD}"', f'{{"payload": 1, "id": "{PAYLOAD} "}}'):
            sent = {**headers, "Content-Type": "application/json"}
            refused = httpx.post(f"{http}/v1/queues/emails/tasks?x={PAYLOAD}", content=body, headers=sent, timeout=20)
            assert refused.status_code in (400, 401)
            assert PAYLOAD not in refused.headers["X-Request-Id"]
    heard.run("enqueue", "No", f'"{PAYLOAD}"', "--url", url, "--token", good, code=2)
    heard.run("enqueue", "emails", f'"{PAYLOAD}', "--url", url, "--token", good, code=2)
    heard.run("enqueue", "emails", f'"{PAYLOAD}"', "--url", url, "--token", bad, code=1)
    heard.run("queues", "list", "--url", url, code=1, FAIRQ_TOKEN=good)


@pytest.mark.parametrize(
    ("run", "log"),
    [(fairq_here, "--log-json"), pytest.param(fairq, "--no-log-json", marks=pytest.mark.deep("longest"))],
)
def test_no_secret_is_in_any_log_or_error(
    start_store: Callable[..., stores.LocalServer], tmp_path: Path, run: Callable[..., Finished], log: str
) -> None:
    heard, store = Heard(run), start_store()
    client = stores.connect(store.url)
    client.execute_command("ACL", "SETUSER", "fairq", "resetpass", f">{PASSWORD}")
    client.close()
    secret_url = store.url.replace(stores.PASSWORD, PASSWORD)
    (tmp_path / "jobs.py").write_text(APP)
    tokens = [
        token_of(heard, secret_url, "tenant", "--tenant", "ada"),
        token_of(heard, secret_url, "worker"),
        make_token(Role.TENANT)[1],
    ]
    ada, worker, unknown = tokens
    logs = ("--grace", "0.1", "--log-level", "debug", log)
    serve = ("serve", "--port", "0", "--http-port", "0", "--admin-port", "0", "--unsafe-store", *logs)

    async def answer(request: Request) -> Reply:
        return reply(500, body=request.body)

    with receiving(answer) as (_, port), heard.running(*serve, until="serving", cwd=tmp_path, FAIRQ_STORE=secret_url):
        line = heard.texts[-1]
        url, http = url_in(line, "url"), url_in(line, "http")
        at = ("--url", url)
        misuse(url, http, ada, unknown, heard)
        for queue in ("emails", "done", "hooks"):
            heard.run("enqueue", queue, f'"{PAYLOAD}"', *at, code=0, FAIRQ_TOKEN=ada)
        posts = ("webhook-worker", "hooks", "--url", f"http://127.0.0.1:{port}/in", "--allow-private", "127.0.0.1")
        working = {"FAIRQ_URL": url, "FAIRQ_TOKEN": worker}
        with (
            heard.running("worker", "jobs:app", *logs, until="it failed", cwd=tmp_path, **working),
            heard.running(*posts, *logs, until="answered 500", cwd=tmp_path, FAIRQ_WEBHOOK_SECRET=SECRET, **working),
        ):
            store.kill()  # all of them log what they make of it
            heard.run("enqueue", "emails", f'"{PAYLOAD}"', *at, "--timeout", "0.5", code=1, FAIRQ_TOKEN=ada)
    heard.run(*posts, "--secret-file", tmp_path / "none", code=2, FAIRQ_TOKEN=worker)
    heard.run(*posts, code=2, FAIRQ_TOKEN=worker, FAIRQ_WEBHOOK_SECRET=f"{SECRET}!")
    for wrong in (secret_url, secret_url.replace("redis:", "http:"), secret_url.replace(":", "://", 1)):
        heard.run("serve", "--port", "0", "--store-timeout", "0.5", *logs, code=2, FAIRQ_STORE=wrong)
    text = "\n".join(heard.texts)
    assert [words for words in HEARD if words not in text] == []
    for planted in (PASSWORD, PAYLOAD, SECRET, SECRET.removeprefix("whsec_"), *tokens):
        lines = [line for line in text.splitlines() if planted in line]
        assert not lines, lines[0]
