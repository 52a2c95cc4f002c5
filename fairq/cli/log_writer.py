"""A stream for logs that never makes its writer wait.

Standard error may not be read: a pipe fills, a terminal is held, a container engine's log driver blocks, a disk is
full. A server has one loop, and tenants can have lines logged; so a thread writes, and lines that it cannot get rid of
are dropped and counted. It writes to the file itself: the interpreter waits at its end for the lock of `sys.stderr`,
and ends with code 120 if that has text left that cannot be written.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TextIO, cast

import structlog

MAX_LINES = 10_000  # that wait to be written
MAX_BYTES = 16 * 1024 * 1024  # of those lines
MAX_LINE_BYTES = 64 * 1024
END_S = 1.0  # to write what waits when the process ends


class LogWriter:
    """Writes lines to a stream's file in a thread of its own; errors of the file are ignored.

    While MAX_LINES or MAX_BYTES wait, further lines are dropped. When half of the waiting lines are written, one line
    tells how many were dropped or not taken by the file.

    In a forked process a thread starts with the first line. There the writer waits for its line, END_S at most, and
    not again before a line is written: such a process may end without notice, as those of `multiprocessing` do.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._file = os.dup(stream.fileno())
        self._begin(is_forked=False)
        self._start()
        os.register_at_fork(after_in_child=partial(self._begin, is_forked=True))
        atexit.register(self.close)

    def _begin(self, *, is_forked: bool) -> None:
        self._lock = threading.RLock()  # a signal's handler may log while its thread logs
        self._lines: queue.SimpleQueue[bytes | Callable[[], object]] = queue.SimpleQueue()
        self._bytes = self._dropped = 0  # that wait; lines
        self._is_torn = False  # the file took only the beginning of a line
        self._is_forked = is_forked
        self._is_stuck = False  # a line was waited for in vain
        self._has_thread = False

    def _start(self) -> None:
        with self._lock:
            if not self._has_thread:
                threading.Thread(target=self._write_all, name="log", daemon=True).start()
                self._has_thread = True

    def __getattr__(self, name: str) -> Any:
        """Behave like the stream in all else, for code that knows it as `sys.stderr`."""
        return getattr(self._stream, name)

    def write(self, line: str) -> int:
        """Queue a line, or drop it."""
        data = _encoded(line)
        with self._lock:
            is_taken = self._lines.qsize() < MAX_LINES and self._bytes + len(data) <= MAX_BYTES
            if is_taken:
                self._bytes += len(data)
                self._lines.put(data)
            else:
                self._dropped += 1
        if is_taken and self._is_forked:
            self._write_now()
        return len(line)

    def flush(self) -> None:
        """Do nothing: each line is written as soon as the file takes it."""

    def close(self) -> None:
        """Wait until all lines taken are written, END_S at most."""
        if self._has_thread:
            self._wait(END_S)

    def replace_stream(self) -> None:
        """Stand in for the stream in `sys`; what is left in the stream's own buffer is written in its turn."""
        self._lines.put(self._stream.flush)
        sys.stderr = sys.__stderr__ = cast("Any", self)  # type: ignore[misc]  # both are flushed at the end

    def _write_now(self) -> None:
        with suppress(RuntimeError):  # no thread can start: the process ends, or has too many
            self._start()
            if not self._is_stuck:
                self._is_stuck = not self._wait(END_S)

    def _wait(self, seconds: float) -> bool:
        """Wait until all lines taken are written; returns whether they are."""
        written = threading.Event()
        self._lines.put(written.set)
        return written.wait(seconds)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            if not isinstance(line, bytes):
                self._tell_dropped()
                with suppress(OSError, ValueError):
                    line()
                continue
            is_written = self._put(line)
            with self._lock:
                self._bytes -= len(line)
                self._dropped += not is_written
            if is_written and self._lines.qsize() < MAX_LINES // 2 and self._bytes < MAX_BYTES // 2:
                self._tell_dropped()

    def _tell_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if not dropped:
            return
        text = io.StringIO()
        log = structlog.wrap_logger(  # the log's level does not hide it
            structlog.WriteLogger(text), wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET)
        )
        log.warning("log lines dropped: standard error did not take them", lines=dropped)
        if not self._put(_encoded(text.getvalue())):
            with self._lock:
                self._dropped += dropped

    def _put(self, line: bytes) -> bool:
        """Write a line, even if that takes long; returns whether the file took it."""
        left = b"\n" + line if self._is_torn else line
        length = len(left)
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except BlockingIOError:  # another process has made it non-blocking
                waiting = select.poll()
                waiting.register(self._file, select.POLLOUT)
                waiting.poll()
            except OSError:  # its reader is gone, or the disk is full
                self._is_torn = self._is_torn or len(left) < length
                return False
        self._is_torn = self._is_stuck = False
        return True


def _encoded(line: str) -> bytes:
    """Encode a line, cut to MAX_LINE_BYTES."""
    data = line[:MAX_LINE_BYTES].encode(errors="backslashreplace")
    if len(line) <= MAX_LINE_BYTES and len(data) <= MAX_LINE_BYTES:
        return data
    mark = f"... (cut, {len(line):,} characters)\n".encode()
    return data[: MAX_LINE_BYTES - len(mark)].decode(errors="ignore").encode() + mark


@contextmanager
def open_log() -> Iterator[LogWriter]:
    """Open a log to standard error. After the block all else that the process says there goes through it, too.

    So neither an error's text nor the interpreter's end waits for a reader.
    """
    writer = LogWriter(sys.stderr or open(os.devnull, "w"))  # noqa: SIM115  # of the process
    try:
        yield writer
    finally:
        writer.replace_stream()
