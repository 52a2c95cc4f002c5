"""The workers' records: one line per execution, which each worker appends to its own file, and which is read here.

The files are independent of the service, so they show lost and repeated tasks.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import orjson
from attrs import asdict, define, field, frozen

DIRECTORY_VARIABLE = "FAIRQ_DEMO_EXECUTIONS"


@frozen
class Execution:
    """One run of a task. `wait_ms` is the time from enqueue to the start of the handler, by this machine's clock."""

    id: str
    queue: str
    tenant: str
    owner: str
    path: str
    digest: str
    attempt: int
    wait_ms: int


@cache
def _own_file() -> int:
    path = Path(os.environ[DIRECTORY_VARIABLE]) / f"{os.getpid()}.jsonl"
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def append_execution(execution: Execution) -> None:
    """Append one line to this process's file, in one write, so that threads cannot mix their lines."""
    os.write(_own_file(), orjson.dumps(asdict(execution)) + b"\n")


@define
class Follower:
    """Reads the lines appended to the files of a directory since the last read."""

    directory: Path
    _offsets: dict[Path, int] = field(factory=dict, init=False)

    def read_new(self) -> list[Execution]:
        """Return the new executions; an incomplete line is left for the next read."""
        found: list[Execution] = []
        for path in sorted(self.directory.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                complete, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(complete) + len(newline)
            found += [Execution(**orjson.loads(line)) for line in complete.splitlines()]
        return found
