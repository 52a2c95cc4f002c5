"""A stream for logs that never makes its writer wait.

Standard error may not be read: a pipe fills, a terminal is held, a container engine's log driver blocks, a disk is
slow. A server has one loop, and tenants can have lines logged; so a thread writes, and lines that it cannot get rid of
are dropped and counted.
"""

from __future__ import annotations

import atexit
import queue
import threading
from typing import TextIO

import structlog

MAX_LINES = 10_000  # that wait to be written
END_S = 1.0  # to write what waits when the process ends


class LogWriter:
    """Writes lines to a stream in a thread of its own; errors of the stream are ignored.

    While MAX_LINES wait, further lines are dropped. A line tells how many, once half of those that waited are written.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        self._dropped = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._write_all, name="log", daemon=True).start()
        atexit.register(self.close)

    def write(self, line: str) -> int:
        """Take a line, or drop it."""
        if self._lines.qsize() < MAX_LINES:
            self._lines.put(line)
        else:
            with self._lock:
                self._dropped += 1
        return len(line)

    def flush(self) -> None:
        """Do nothing: each line is flushed once it is written."""

    def close(self) -> None:
        """Wait until all lines taken are written, END_S at most."""
        written = threading.Event()
        self._lines.put(written)
        written.wait(END_S)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                self._stream.write(line)
                self._stream.flush()
            except (OSError, ValueError):  # its reader is gone, or it is closed
                continue
            if self._dropped and self._lines.qsize() < MAX_LINES // 2:
                with self._lock:
                    dropped, self._dropped = self._dropped, 0
                structlog.get_logger().warning("log lines dropped: standard error was not read", lines=dropped)
