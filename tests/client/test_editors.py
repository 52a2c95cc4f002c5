"""What editors show of the options while somebody types a call: Pyright is asked as they ask it, and checks calls too.

Neither it nor mypy runs the SDK: both read its source.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fairq
from fairq.model.option_tables import DeadLetterFilter, Moment, Seconds, TaskOptions

pytestmark = pytest.mark.deep("guides")

ROOT = Path(fairq.__file__).parent.parent
PROGRAM = """\
import fairq, fairq.sync, fairq.testing, fairq.testing.sync

async def enqueue(client: fairq.Client, task: fairq.Task, tested: fairq.testing.MemoryService) -> None:
    async with fairq.open_client() as client:
        await client.enqueue()
        await client.enqueue_many()
        await client.schedule()
        batch = await client.open_batch("emails")
        await batch.add()
        await batch.add_many()
        dead = client.dead_letters("emails")
        await dead.page()
        dead.pages()
        dead.walk()
        dead.replay_all()
        dead.purge_all()
        await task.enqueue()
        task.then()
        await tested.enqueue()
        await tested.enqueue_many()

def block(batch: fairq.sync.Batch, dead: fairq.sync.DeadLetters, tested: fairq.testing.sync.MemoryService) -> None:
    with fairq.sync.open_client() as client:
        client.enqueue()
        client.enqueue_many()
        client.schedule()
        batch.add()
        batch.add_many()
        dead.page()
        dead.pages()
        dead.walk()
        dead.replay_all()
        dead.purge_all()
        tested.enqueue()
        tested.enqueue_many()
"""


class LanguageServer:
    """Pyright as an editor talks to it, over pipes: a request at a time."""

    def __init__(self, text: str, path: Path) -> None:
        program = [str(Path(sys.executable).with_name("basedpyright-langserver")), "--stdio"]
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.uri, self.last = path.as_uri(), 0
        plain = {"signatureHelp": {"signatureInformation": {"documentationFormat": ["plaintext"]}}}
        folder = {"uri": ROOT.as_uri(), "name": "fairq"}
        self.ask("initialize", processId=None, workspaceFolders=[folder], capabilities={"textDocument": plain})
        self._send(method="initialized", params={})
        document = {"uri": self.uri, "languageId": "python", "version": 1, "text": text}
        self._send(method="textDocument/didOpen", params={"textDocument": document})

    def _send(self, **message: Any) -> None:
        assert self.process.stdin
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def _receive(self) -> Any:
        assert self.process.stdout
        length = 0
        while line := self.process.stdout.readline().strip():
            name, _, value = line.decode().partition(": ")
            length = int(value) if name == "Content-Length" else length
        return json.loads(self.process.stdout.read(length))

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result; what the server asks meanwhile is answered with nothing."""
        self.last += 1
        self._send(id=self.last, method=method, params=params)
        while True:
            message = self._receive()
            if "method" not in message and message["id"] == self.last:
                return message["result"]
            if "id" in message:
                self._send(id=message["id"], result=None)

    def at(self, method: str, line: int, column: int) -> Any:
        """Ask about a place in the text."""
        place = {"line": line, "character": column}
        return self.ask(f"textDocument/{method}", textDocument={"uri": self.uri}, position=place)


@pytest.fixture(scope="module")
def editor() -> Iterator[LanguageServer]:
    """An editor in which the program stands."""
    server = LanguageServer(PROGRAM, ROOT / "program_that_is_typed.py")
    with server.process:
        yield server
        server.process.kill()


CALLS = {n: line for n, line in enumerate(PROGRAM.splitlines()) if line.endswith("()") and " def " not in line}


def options_of(call: str) -> Iterator[tuple[str, Any]]:
    table = DeadLetterFilter if "dead." in call else TaskOptions
    yield from get_type_hints(table).items()


@pytest.mark.parametrize("n", CALLS, ids=[f"{n}-{line.split()[-1][:-2]}" for n, line in CALLS.items()])
def test_an_editor_shows_every_option_with_its_type_and_completes_it(n: int, editor: LanguageServer) -> None:
    line = CALLS[n]
    (shown,) = editor.at("signatureHelp", n, len(line) - 1)["signatures"]
    completed = {each["label"] for each in editor.at("completion", n, len(line) - 1)["items"]}
    spelled = {Seconds | None: "Seconds | None", Moment | None: "Moment | None", bool: "bool"}
    for name, kind in options_of(line):
        assert f"{name}: {spelled.get(kind, str(kind))} = ..." in shown["label"]
        assert f"{name}=" in completed


CHECKED = """\
import fairq, fairq.sync, fairq.testing
from datetime import timedelta

async def good(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> str:
    await batch.add(1, priority=3)
    await task.enqueue("emails", 1, delay=2)
    client.dead_letters("emails").walk(older_than=3)
    return (await client.enqueue("emails", 1, delay=timedelta(hours=1), result_ttl=60)).id

async def good_for_operators(client: fairq.OperatorClient) -> None:
    await client.set_limits("emails", "acme", max_running=5, rate=0.5, queued=None)
    await client.configure("emails", share="count", max_attempts=3)

def good_too(client: fairq.sync.Client) -> bool:
    return client.enqueue("emails", 1, delay=1.5).is_duplicate

async def good_results(task: fairq.EnqueuedTask, blocking: fairq.sync.EnqueuedTask) -> int:
    anything, as_much = await task.result(timeout=5), blocking.result(timeout=5)
    anything.is_not_known, as_much.is_not_known
    names: list[str] = blocking.result(list[str], timeout=5)
    return await task.result(int) + len(names)

async def good_in_tests(service: fairq.testing.MemoryService) -> list[str]:
    (task,) = await service.enqueue_many("emails", [1])
    return [(await service.enqueue("emails", 1)).reason, task.reason]

async def bad(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> None:
    await client.enqueue("emails", 1, delay="soon")
    await client.enqueue("emails", 1, dealy=1)
    await batch.add(1, priority="high")
    task.then("emails", 1, dealy=1)
    client.dead_letters("emails").walk(older=3)

async def bad_for_operators(client: fairq.OperatorClient) -> None:
    await client.set_limits("emails", max_runing=5)
    await client.configure("emails", max_attempts="many")
    await client.configure("emails", share="fair")

async def bad_results(task: fairq.EnqueuedTask, blocking: fairq.sync.EnqueuedTask) -> None:
    (await task.result(int)).upper()
    blocking.result(str) + 1
    await task.result(timeout="soon")

def bad_too(client: fairq.sync.Client) -> None:
    client.enqueue("emails", 1, delay="soon")
    client.enqueue("emails", 1, dealy=1)
"""


def by_mypy(program: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from mypy import api  # what takes long to import is not imported by runs that leave these tests out

    monkeypatch.setenv("MYPYPATH", str(ROOT))
    options = ["--strict", "--config-file=", f"--cache-dir={program.parent}", "--follow-imports=silent"]
    found, trouble, _ = api.run([*options, str(program)])
    assert not trouble
    return [int(line.split(":")[1]) for line in found.splitlines() if "error:" in line]


def by_pyright(program: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level=error", str(program)]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, timeout=120, check=False)
    return [each["range"]["start"]["line"] + 1 for each in json.loads(done.stdout)["generalDiagnostics"]]


@pytest.mark.parametrize("checked", [by_mypy, by_pyright])
def test_type_checkers_refuse_a_wrong_type_and_an_unknown_option(
    checked: Callable[[Path, pytest.MonkeyPatch], list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(CHECKED)
    lines = CHECKED.splitlines()
    first = lines.index("async def bad(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> None:")
    wrong = [n for n, line in enumerate(lines, 1) if n > first + 1 and line.startswith("    ")]
    assert checked(tmp_path / "program.py", monkeypatch) == wrong
