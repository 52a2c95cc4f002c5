"""What code costs, counted, so that no load of the machine changes it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
import trio.lowlevel
from attrs import define


@define(eq=False)
class Cost(trio.abc.Instrument):
    """What this thread has done."""

    calls: int = 0  # of Python functions; each step of a coroutine counts as one of each function in it
    tasks: int = 0
    steps: int = 0
    instructions: int = 0  # of bytecode; to count them takes ten times as long

    def task_spawned(self, _: trio.lowlevel.Task) -> None:
        """Count a task."""
        self.tasks += 1

    def before_task_step(self, _: trio.lowlevel.Task) -> None:
        """Count a step."""
        self.steps += 1

    def note(self, _frame: object, event: str, _arg: object) -> None:
        """Count a call, as a profiler."""
        self.calls += event == "call"

    def trace(self, frame: types.FrameType, event: str, _arg: object) -> Any:
        """Count an instruction, as a debugger; have those of a function counted that begins."""
        if event == "call":
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
        else:
            self.instructions += event == "opcode"
        return self.trace


@contextmanager
def counting(cost: Cost, *, instructions: bool = False) -> Iterator[None]:
    """Count what this thread, in trio, does meanwhile."""
    trio.lowlevel.add_instrument(cost)
    sys.setprofile(cost.note)
    sys.settrace(cost.trace if instructions else None)
    try:
        yield
    finally:
        sys.settrace(None)
        sys.setprofile(None)
        trio.lowlevel.remove_instrument(cost)
