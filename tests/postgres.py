"""A Postgres of a test's own, reached by a socket in its folder."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tests.parts import program

COMMAND_S = 60
ANOTHER = ("unshare", "--user", "--map-user=postgres", "--map-group=postgres")  # it refuses to run as root


@frozen
class Postgres:
    """One that `running` has made."""

    folder: Path

    @property
    def pid(self) -> int:
        """The id of its first process, the parent of all others."""
        return int((self.folder / "db" / "postmaster.pid").read_text().split()[0])

    def do(self, verb: str, *options: str) -> None:
        """Start, stop or restart it, and wait for that. Raises: subprocess.SubprocessError with what it said."""
        _run("pg_ctl", verb, "-D", self.folder / "db", "-w", "-l", self.folder / "log", *options)


def _run(name: str, *arguments: str | Path) -> None:
    command = [*(ANOTHER if os.geteuid() == 0 else ()), program(name), *map(str, arguments)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, start_new_session=True
    )
    if done.returncode:
        raise subprocess.SubprocessError(done.stderr + done.stdout)


@contextmanager
def running(options: str = "-c listen_addresses='' -c fsync=off") -> Iterator[Postgres]:
    """Run one while the block lasts; its user is postgres, without a password.

    Raises: subprocess.SubprocessError with what it said, if it cannot be made, started or stopped.
    """
    with tempfile.TemporaryDirectory(prefix="fairq", ignore_cleanup_errors=True) as name:  # short: a socket is in it
        found = Postgres(Path(name))
        _run("initdb", "-D", found.folder / "db", "-U", "postgres", "--auth", "trust", "--no-sync")
        try:
            found.do("start", "-o", f"-k {name} {options}")
            yield found
        finally:
            if (found.folder / "db" / "postmaster.pid").exists():
                found.do("stop", "-m", "immediate")
