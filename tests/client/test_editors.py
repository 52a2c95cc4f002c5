"""What editors show of the options while somebody types a call: jedi is asked as they ask it, and mypy checks the call.

Neither runs the SDK: both read its source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import fairq
from fairq.model.options import DeadLetterFilter, TaskOptions, UnnamedTaskOptions

pytestmark = pytest.mark.deep("guides")

ROOT = Path(fairq.__file__).parent.parent
PROGRAM = """\
import fairq, fairq.sync, fairq.testing, fairq.testing.sync

async def enqueue(client: fairq.Client, task: fairq.Task, tested: fairq.testing.MemoryService) -> None:
    async with fairq.open_client() as client:
        await client.enqueue(
        await client.enqueue_many(
        await client.schedule(
        batch = await client.open_batch("emails")
        await batch.add(
        await batch.add_many(
        dead = client.dead_letters("emails")
        await dead.page(
        dead.pages(
        dead.walk(
        dead.replay_all(
        dead.purge_all(
        await task.enqueue(
        task.then(
        await tested.enqueue(
        await tested.enqueue_many(

def block(batch: fairq.sync.Batch, dead: fairq.sync.DeadLetters, tested: fairq.testing.sync.MemoryService) -> None:
    with fairq.sync.open_client() as client:
        client.enqueue(
        client.enqueue_many(
        client.schedule(
        batch.add(
        batch.add_many(
        dead.page(
        dead.pages(
        dead.walk(
        dead.replay_all(
        dead.purge_all(
        tested.enqueue(
        tested.enqueue_many(
"""


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """jedi's cache is written while other test processes read it."""
    import jedi  # here and below: what takes long to import is not imported by runs that leave these tests out

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(jedi.settings, "cache_directory", str(tmp_path_factory.mktemp("jedi")))
        yield


CALLS = {n: line for n, line in enumerate(PROGRAM.splitlines(), 1) if line.endswith("(")}


def options_of(call: str) -> Iterator[tuple[str, Any, str]]:
    table = DeadLetterFilter if "dead." in call else UnnamedTaskOptions if "schedule" in call else TaskOptions
    for name, hint in get_type_hints(table, include_extras=True).items():
        yield name, hint.__origin__, hint.__metadata__[0]


@pytest.mark.parametrize("n", CALLS, ids=[f"{n}-{line.split()[-1][:-1]}" for n, line in CALLS.items()])
def test_an_editor_shows_every_option_with_type_default_and_meaning(n: int) -> None:
    import jedi

    line = CALLS[n]
    typed = [*(each for each in PROGRAM.splitlines()[: n - 1] if not each.endswith("(")), line]
    project = jedi.Project(ROOT, sys_path=[str(ROOT), *sys.path], smart_sys_path=False)
    script = jedi.Script("\n".join(typed), project=project)
    shown = script.get_signatures(len(typed), len(line))[0].docstring()
    hovered = script.infer(len(typed), len(line) - 2)[0].docstring()
    for name, kind, meaning in options_of(line):
        default = "False" if kind is bool else "None"
        told = "bool" if kind is bool else str(kind).replace("datetime.", "")
        assert f"{name}: {told}={default}" in shown
        assert f"    {name}: {meaning}\n" in f"{shown}\n"
        assert f"{name}: {told}={default}" in hovered  # jedi's text is that of the source if a method is decorated


CHECKED = """\
import fairq, fairq.sync
from datetime import timedelta

async def good(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> str:
    await batch.add(1, priority=3)
    await task.enqueue("emails", 1, delay=2)
    client.dead_letters("emails").walk(older_than=3)
    return (await client.enqueue("emails", 1, delay=timedelta(hours=1), result_ttl=60)).id

def good_too(client: fairq.sync.Client) -> bool:
    return client.enqueue("emails", 1, delay=1.5).is_duplicate

async def bad(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> None:
    await client.enqueue("emails", 1, delay="soon")
    await client.enqueue("emails", 1, dealy=1)
    await batch.add(1, priority="high")
    task.then("emails", 1, dealy=1)
    client.dead_letters("emails").walk(older=3)

def bad_too(client: fairq.sync.Client) -> None:
    client.enqueue("emails", 1, delay="soon")
    client.enqueue("emails", 1, dealy=1)
"""


def test_type_checkers_refuse_a_wrong_type_and_an_unknown_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mypy import api

    monkeypatch.setenv("MYPYPATH", str(ROOT))
    (tmp_path / "program.py").write_text(CHECKED)
    options = ["--strict", "--config-file=", f"--cache-dir={tmp_path}", "--follow-imports=silent"]
    told, trouble, _ = api.run([*options, str(tmp_path / "program.py")])
    assert not trouble
    errors = [line for line in told.splitlines() if "error:" in line]
    lines = CHECKED.splitlines()
    first = lines.index("async def bad(client: fairq.Client, batch: fairq.Batch, task: fairq.Task[object]) -> None:")
    wrong = [n for n, line in enumerate(lines, 1) if n > first + 1 and line.startswith("    ")]
    assert [int(line.split(":")[1]) for line in errors] == wrong, told
