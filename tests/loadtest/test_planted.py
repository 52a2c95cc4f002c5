"""Planted bugs: a server that breaks a rule of `faults` is found out by a run of it, with real processes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from loadtest.faults.history import check
from loadtest.faults.run import SCENARIOS, Run, Scenario, Sizes
from loadtest.faults.stores import Single
from loadtest.report import Progress
from tests.upgrade.tomorrow import copy, replace

pytestmark = pytest.mark.deep("kills")
LIMIT_S = 120.0
SIZES = Sizes(seconds=6, limit=15)


class Bug(NamedTuple):
    """A text of the package, and what stands there instead; and the fault that brings it to light."""

    file: str
    text: str
    instead: str
    fault: str = "kill a worker"


_CLAIM, _ARRIVALS, _CALLS = "lua/verbs/claim.lua", "lua/tasks/arrivals.lua", "store/task_calls.py"
BUGS = {
    "lost": Bug(
        _CALLS,
        "        maker = tenant if maker is None else maker\n",
        "        maker = tenant if maker is None else maker\n"
        "        if tenant == 't0' and tasks[0].id.endswith('7'):\n            return ['ok'] * len(tasks)\n",
    ),
    "strange": Bug(
        _ARRIVALS,
        "  all[n + 1], all[n + 2] = id, record\n",
        "  all[n + 1], all[n + 2], all[n + 3], all[n + 4] = id, record, id .. 'x', record\n"
        "  ready[#ready + 1] = id .. 'x'\n",
    ),
    "done though refused": Bug(
        _CALLS,
        "        return outcomes\n\n    async def claim(",
        "        if tasks[0].id not in self._ahead_ms:\n            self._ahead_ms[tasks[0].id] = 0\n"
        "            from fairq.errors import StoreFull\n            raise StoreFull('no room')\n"
        "        return outcomes\n\n    async def claim(",
    ),
    "doubled": Bug(
        _CLAIM, "last_run.attempt + 1, ", "last_run.attempt + (last_run.state == leases.REAPED and 0 or 1), "
    ),
    "leased twice": Bug("lua/tasks/leases.lua", "call.at + call.queue.lease_ms, field", "call.at + 400, field"),
    "run after its end": Bug(
        _CALLS,
        "        if not any(map(_links_of, settlements)):\n",
        "        if queue == 'http' and settlements[0].lease % 3 == 0:\n            return ['ok'] * len(settlements)\n"
        "        if not any(map(_links_of, settlements)):\n",
    ),
    "stale settlement taken": Bug("lua/tasks/settlements.lua", "number and lease ~= number or ", ""),
    "started before its start": Bug(_ARRIVALS, "start_at > call.now then\n", "start_at > call.now + 1500 then\n"),
    "started after its expiry": Bug(
        _ARRIVALS, "call.now + options.expires_in, from", "call.now + options.expires_in + 5000, from", "stop the store"
    ),
    "expired before its expiry": Bug(
        "lua/verbs/tick.lua",
        "'expiring', '-inf', call.sure,",
        "'expiring', '-inf', call.sure + 6000,",
        "stop the store",
    ),
    "dead by a fault": Bug("lua/tasks/settlements.lua", "counts and counts(run) or is_last_attempt(run)", "true"),
    "left": Bug(
        _ARRIVALS,
        "table.insert(table_in(new, 'delayed'), start_at)",
        "table.insert(table_in(new, 'delayed'), start_at + 1e8)",
    ),
    "ended by itself": Bug(
        "store/connection.py",
        '        log.warning("store connection lost", store=self.address.shown)\n',
        "        raise SystemExit(1)\n",
        "cut the link to the store",
    ),
}


@pytest.mark.parametrize("rule", BUGS)
async def test_a_planted_bug_is_found(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, home = BUGS[rule], copy(tmp_path / "planted")
    replace(home / "fairq" / bug.file, bug.text, bug.instead)

    class Planted(Single):
        def versions(self) -> dict[str, Path]:
            return {"a server": home}

    monkeypatch.setitem(SCENARIOS, "planted", Scenario(Planted))
    with trio.fail_after(LIMIT_S):
        one = Run.of("planted", 1, tmp_path / "run", "everysec", SIZES, Progress())
        one.only(bug.fault)
        await one.run()
    assert check(one.history, one.deeds)[rule]
