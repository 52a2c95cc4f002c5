"""What code costs, counted, so that no load of the machine changes it."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
import trio.lowlevel
from attrs import astuple, define, field

_WAITS = frozenset({"epoll.poll", "kqueue.control"})


@define(eq=False)
class Cost(trio.abc.Instrument):
    """What a thread has done, or does for one job."""

    calls: float = 0  # of Python functions; each step of a coroutine counts as one of each function in it
    tasks: float = 0
    steps: float = 0
    instructions: float = 0  # of bytecode

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
def counting(*, with_instructions: bool = False) -> Iterator[Cost]:
    """Count what this thread does until the block is left; instructions are slow to count."""
    cost, profiler, debugger = Cost(), sys.getprofile(), sys.gettrace()
    is_in_trio = trio.lowlevel.in_trio_run()
    if is_in_trio:
        trio.lowlevel.add_instrument(cost)
    sys.setprofile(cost.note)
    if with_instructions:
        sys.settrace(cost.trace)
    try:
        yield cost
    finally:
        if with_instructions:
            sys.settrace(debugger)
        sys.setprofile(profiler)
        if is_in_trio:
            trio.lowlevel.remove_instrument(cost)


@define(eq=False)
class Rounds:
    """What a job costs in the cheapest of several rounds: a heartbeat, a tick or a slow neighbour adds to some."""

    cost: Cost
    jobs: int  # in a round
    _before: tuple[float, ...] = field(init=False)
    _rounds: list[list[float]] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._before = astuple(self.cost)

    def end_round(self) -> None:
        """Note that a round is over."""
        now = astuple(self.cost)
        self._rounds.append([(after - before) / self.jobs for before, after in zip(self._before, now, strict=True)])
        self._before = astuple(self.cost)  # without what this has called

    def cheapest(self) -> Cost:
        """Return what one job costs."""
        return Cost(*map(min, zip(*self._rounds, strict=True)))


@contextmanager
def counting_to_writes() -> Iterator[list[int]]:
    """Collect how many functions this thread calls from each end of a wait for I/O to the writes that follow it."""
    found, calls, profiler = list[int](), 0, sys.getprofile()

    def note(_frame: object, event: str, arg: Any) -> None:
        nonlocal calls
        if event == "call":
            calls += 1
        elif event == "c_call" and arg is os.write:
            found.append(calls)
        elif event == "c_return" and getattr(arg, "__qualname__", "") in _WAITS:
            calls = 0

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(profiler)
