"""The line between a process and a child that it starts: one end of a socket pair each.

The child reads the end of its line when the process that started it has ended, for any reason. The line is a file of
its own, which the programs that the child runs do not inherit. The child's standard input is /dev/null.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import trio

_FIRST = 3  # lower numbers are the standard streams, even if this process has closed its own


async def start_child(
    command: Sequence[str], environment: Mapping[str, str], variable: str, **more: Any
) -> tuple[trio.Process, socket.socket]:
    """Start a program, in a session of its own; returns it, and this end of the line. `variable` numbers its own end.

    `more`: see subprocess.Popen. Raises: OSError.
    """
    from fcntl import F_DUPFD_CLOEXEC, fcntl  # not on Windows

    ours, its = socket.socketpair()
    with its:
        number = fcntl(its, F_DUPFD_CLOEXEC, _FIRST)
    try:
        child = await trio.lowlevel.open_process(
            command, env={**environment, variable: str(number)}, stdin=subprocess.DEVNULL, pass_fds=[number],
            start_new_session=True, **more,
        )  # fmt: skip
    except BaseException:
        ours.close()
        raise
    finally:
        os.close(number)
    ours.setblocking(False)
    return child, ours


def take_line(variable: str) -> socket.socket | None:
    """Return this process's end of the line to its parent; None after the first call, or if it has no such parent."""
    text = os.environ.pop(variable, "")
    if not text.isdecimal():
        return None
    line = socket.socket(fileno=int(text))
    line.set_inheritable(False)
    return line
