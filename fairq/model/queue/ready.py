"""A tenant's ready tasks in plain Python: by priority, and in groups (lua/tasks/group_order.lua has the theory)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple

from attrs import define, field

LOOSE = ""  # the group of tasks that have none


class Asked(NamedTuple):
    """The options of a task that decide its place."""

    priority: int
    group: str = LOOSE


@define
class Line:
    """The ready tasks of one priority; `finish` and `clock` count while it has groups."""

    groups: dict[str, deque[str]] = field(factory=dict)
    finish: dict[str, float] = field(factory=dict)
    clock: float = 0

    @property
    def has_groups(self) -> bool:
        """True if any of its tasks are of groups."""
        return bool(self.groups.keys() - {LOOSE})

    def leave(self, group: str) -> None:
        """Remove a group if it has no tasks left."""
        if self.groups[group]:
            return
        del self.groups[group]
        if group:
            del self.finish[group]
        if not self.has_groups:
            self.finish, self.clock = {}, 0

    def pop(self, asked: Callable[[str], Asked]) -> str:
        """Take the next task."""
        if not self.has_groups:
            id = self.groups[LOOSE].popleft()
            self.leave(LOOSE)
            return id
        if LOOSE not in self.groups:
            self.finish.pop(LOOSE, None)
        else:
            self.finish.setdefault(LOOSE, self.clock + 1)
        finish, _, group = min((finish, group.encode(), group) for group, finish in self.finish.items())
        id = self.groups[group].popleft()
        self.clock = finish
        self.finish[group] = finish + 1
        self.leave(group)
        if group == LOOSE and LOOSE not in self.groups:
            self.finish.pop(LOOSE, None)
        return id


class ReadyTasks:
    """The ready tasks of a tenant, in the order in which they are served; `asked` returns the options of each."""

    def __init__(self) -> None:
        self.lines: dict[int, Line] = {}
        self.asked: dict[str, Asked] = {}

    def __len__(self) -> int:
        return len(self.asked)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the ids as if all were served now."""
        lines = deepcopy(self.lines)
        for _, line in sorted(lines.items()):
            while line.groups:
                yield line.pop(self.asked.__getitem__)

    def put(self, id: str, asked: Asked, order: int, at_head: bool = False) -> None:
        """Put a task at the end or head of its group; `order` counts ready tasks, down at heads."""
        line = self.lines.setdefault(asked.priority, Line())
        if asked.group:
            finish = line.clock + 1 + math.fmod(order, 2**20) * 2**-34
            known = line.finish.get(asked.group, finish)
            line.finish[asked.group] = min(known, finish) if at_head else known
        ids = line.groups.setdefault(asked.group, deque())
        ids.insert(0 if at_head else len(ids), id)
        self.asked[id] = asked

    def popleft(self) -> str:
        """Take the next task."""
        priority = min(priority for priority, line in self.lines.items() if line.groups)
        id = self.lines[priority].pop(self.asked.__getitem__)
        del self.asked[id]
        return id

    def remove(self, id: str) -> None:
        """Take a task out of its place."""
        asked = self.asked.pop(id)
        line = self.lines[asked.priority]
        line.groups[asked.group].remove(id)
        line.leave(asked.group)

    @property
    def has_groups(self) -> bool:
        """True if any of the tasks are of groups."""
        return any(line.has_groups for line in self.lines.values())

    def place(self, id: str) -> tuple[int, int]:
        """Return how many tasks of its group precede a task (0 without a group), and how many groups take turns."""
        asked = self.asked[id]
        line = self.lines[asked.priority]
        groups = len(line.groups) if line.has_groups else 0
        return line.groups[asked.group].index(id) if asked.group else 0, groups
