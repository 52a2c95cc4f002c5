"""A simulation runs in a process of its own: it answers as here, and leaves none behind, whatever becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import trio
from attrs import asdict

from fairq.errors import NotFound, Unavailable
from fairq.model.simulation.comparison import compare
from fairq.model.simulation.observed import Observed, observe
from fairq.model.simulation.setup import Proposal
from fairq.server.web.dashboard import simulation_process as module
from fairq.server.web.dashboard import simulator
from tests.store.waiting import wait_until
from tests.test_simulation import history, row, series, state


@pytest.fixture
def observed() -> Observed:
    """A queue of two tenants."""
    names = ("a", "ü b")
    return observe(
        row(), history(*(series(name, [40] * 30, [40] * 30) for name in names)), {n: state(n) for n in names}, {}
    )


def become(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Have another program run in the simulator's place."""
    monkeypatch.setattr(module, "COMMAND", (sys.executable, "-c", f"import os, sys, time\n{program}"))


async def test_it_answers_as_the_same_simulation_here(observed: Observed) -> None:
    for proposal in (Proposal(), Proposal({"ü b": 2.5}, {"a": {"max_running": 3}}, {"a": 0.5}, 7, "count", 20)):
        found, expected = await module.compare_apart(observed, proposal), compare(observed, proposal)
        assert orjson.dumps(asdict(found)) == orjson.dumps(asdict(expected))


async def test_what_it_refuses_is_reported(observed: Observed) -> None:
    with pytest.raises(NotFound, match="no tenant 'none'") as refused:
        await module.compare_apart(observed, Proposal({"none": 2.0}))
    assert refused.value.field == "tenant"


@pytest.mark.parametrize(
    ("program", "said"),
    [("os.kill(os.getpid(), 9)", "died with code -9"), ("sys.stdin.close()\nsys.exit(3)", "died with code 3")],
)
async def test_a_process_that_dies_is_an_error(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    become(monkeypatch, program)
    with pytest.raises(Unavailable, match=said):
        await module.compare_apart(observed, Proposal())


async def test_a_process_that_cannot_be_started_is_an_error(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "COMMAND", (str(tmp_path / "none"),))
    with pytest.raises(Unavailable, match="cannot start"):
        await module.compare_apart(observed, Proposal())


async def test_one_runs_at_a_time_and_dies_with_its_request(
    observed: Observed, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    become(monkeypatch, f"open(f'{tmp_path}/{{os.getpid()}}', 'w')\ntime.sleep(120)")

    async def is_running() -> bool:
        return len(os.listdir(tmp_path)) == 1

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(module.compare_apart, observed, Proposal())
        await wait_until(is_running)
        assert module.LIMITER.statistics().tasks_waiting == 2
        nursery.cancel_scope.cancel()
    (begun,) = os.listdir(tmp_path)
    assert not is_alive(int(begun))
    assert module.LIMITER.borrowed_tokens == 0


def is_alive(pid: int) -> bool:
    """True if there is a process, dead or alive."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_program_imports_little() -> None:
    program = f"import sys, {simulator.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert not {"trio", "anyio", "starlette", "redis", "websockets", "asyncio"} & set(done.stdout.split())


async def test_its_environment_has_none_of_the_servers_settings(
    observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQ_STORE", "redis://:secret@store")
    become(monkeypatch, "sys.exit(40 + ('FAIRQ_STORE' in os.environ) + ('PATH' in os.environ))")
    with pytest.raises(Unavailable, match="code 41"):
        await module.compare_apart(observed, Proposal())
