"""Planted bugs of sessions: each is put into a module's text, and its state machine must come upon it.

`python -m tests.wire.planted NAME` ends with code 1 if it does.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from types import CodeType
from typing import NamedTuple

from hypothesis import Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


class Bug(NamedTuple):
    """A text of a module of fairq.wire, and what stands there instead."""

    module: str
    text: str
    instead: str


_ORDER = "(exchange.number, exchange))\n\n    def put_off"
_TOO_LONG = 'line.popleft().call.finish(error=TooLarge(message, field="payload"))'
_OPEN = "if self.is_open and self._resume_at is None:"
_GROWS = "min(self.max_reconnect_s, RECONNECT_BASE_S * 2"
_REPEATED = "self.session.settlements[self.line].extendleft(reversed(self.settlements))\n"
_LOST = "        self.under_way -= 1\n        self.in_doubt = True\n"
BUGS = {
    name: Bug(module, text, instead)
    for module, bugs in {
        "client_session": {
            "frames leave before the welcome": (_OPEN, "if self._resume_at is None:"),
            "a server that cannot serve is asked at once": (_OPEN, "if self.is_open:"),
            "a draining server gets tasks": ("or not self.is_draining) and", "or True) and"),
            "requests are sent again in another order": (_ORDER, _ORDER.replace("(ex", "(-ex")),
            "a request that was given up is sent": ("elif not exchange.call.is_done:", "else:"),
            "pauses do not grow": ("0.05 * 2.0 ** min(refusals, 5)", "0.05 * 2.0"),
            "a refused queue is not held back": ("if self.is_paused(key):", "if False:"),
            "late frames hold up other queues": ("[2] + LATE_S", "[2] + 5.0"),
            "a queue has as many late frames as it likes": ("SEND_WINDOW - self.under_way.get(key, 0)", "SEND_WINDOW"),
            "the wait for a connection grows for ever": (_GROWS, "max(1, 2"),
        },
        "enqueues": {
            "a third frame of tasks is under way": ("SEND_WINDOW = 2\n", "SEND_WINDOW = 3\n"),
            "a frame has too many tasks": ("left = self.limits.batch, min", "left = 500, min"),
            "rare tasks count as one": ("budget - task.counts", "budget - 1"),
            "outcomes go to another call": ("outcomes[at : at + size]", "outcomes[:size]"),
            "a call ends before all of its tasks": ("if call.missing:\n", "if False:\n"),
            "an answer to a call that was given up breaks the session": ("elif not call.is_done:", "else:"),
            "a call that was given up is sent": ("if chunk.call.is_done:\n     ", "if False:\n     "),
            "a bad call is not set apart": ("or not isinstance(error, Retryable)", "or False"),
            "a bad call fails those that share its frame": ("elif len(self.chunks) == 1:", "elif True:"),
            "a task too long is forgotten": (_TOO_LONG, "line.popleft()"),
        },
        "calls": {
            "a call wakes its caller twice": ("if not self.is_done:\n", "if True:\n"),
            "a call that may have been done ends as unavailable": ("self.under_way or self.in_doubt", "self.under_way"),
            "a lost call is not in doubt": (_LOST, "        self.under_way -= 1\n"),
        },
        "settlements": {
            "a settlement without an answer is forgotten": (_REPEATED, "pass\n"),
        },
        "pauses": {"a pause goes on for ever": ("while self._ends and self._ends[0][0] <= now:", "while False:")},
    }.items()
    for name, (text, instead) in bugs.items()
}  # fmt: skip


class _Planting(SourceFileLoader):
    bug: Bug

    def get_code(self, fullname: str) -> CodeType:
        """Compile the text with the bug in it."""
        source = self.get_data(self.path).decode()
        assert source.count(self.bug.text) == 1, f"the text is there {source.count(self.bug.text)} times"
        return compile(source.replace(self.bug.text, self.bug.instead), self.path, "exec")


def plant(bug: Bug) -> None:
    """Import a module with a bug in it; nothing that uses it may have been imported."""
    name = f"fairq.wire.{bug.module}"
    assert name not in sys.modules
    found = find_spec(name)
    assert found
    assert found.origin
    loader = _Planting(name, found.origin)
    loader.bug = bug
    module = sys.modules[name] = module_from_spec(ModuleSpec(name, loader, origin=found.origin))
    loader.exec_module(module)


def is_found(bug: Bug) -> bool:
    """True if the state machine fails with a bug."""
    plant(bug)
    is_workers = bug.module in ("settlements", "worker_session")
    machine = import_module("tests.wire.test_joined" if is_workers else "tests.wire.test_client_machine")
    tested: type[RuleBasedStateMachine] = machine.JoinedMachine if is_workers else machine.ClientMachine
    try:
        run_state_machine_as_test(
            tested,
            settings=settings(
                max_examples=300, derandomize=True, database=None, deadline=None, phases=[Phase.generate]
            ),
        )
    except Exception:
        return True
    return False


if __name__ == "__main__":
    sys.exit(is_found(BUGS[sys.argv[1]]))
