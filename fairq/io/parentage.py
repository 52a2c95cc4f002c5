"""The line between a process and a child that it starts: one end of a socket pair each.

When the child reads the end of its line, the process that started it has ended, however it did. The child's standard
input is /dev/null, so that what it runs may read that: the line is a file of the child's own, and no program that the
child runs inherits it.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import trio

_FIRST = 3  # numbers below are those of the standard streams, also where this process has closed its own


async def start_child(
    command: Sequence[str], environment: Mapping[str, str], variable: str, **more: Any
) -> tuple[trio.Process, socket.socket]:
    """Start a program, in a session of its own; returns it, and this end of the line. `variable` tells it its own.

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
    """Return this process's end of its line; once, for its own children have none. None: it is no such child."""
    text = os.environ.pop(variable, "")
    if not text.isdecimal():
        return None
    line = socket.socket(fileno=int(text))
    line.set_inheritable(False)
    return line
