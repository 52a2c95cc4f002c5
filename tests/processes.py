"""The processes of this machine, as /proc tells of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def is_running(pid: int | None) -> bool:
    """True if there is such a process, and it is no zombie."""
    return pid is not None and _stat(pid)[:1] not in ([], ["Z"])


def _stat(pid: int) -> list[str]:
    """Read what follows the name in a process's stat: its state, its parent ...; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def commands(below: int | None = None) -> Iterator[tuple[int, list[str]]]:
    """List the ids of all processes with the words of their commands; `below`: only children of this one."""
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        if below is None or _stat(pid)[1:2] == [str(below)]:
            yield pid, words
