"""`fairq worker --reload`: the worker as a child process that restarts when Python files change."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import structlog
import trio
from attrs import define, field

from fairq.errors import SettingsError
from fairq.io.scopes import background

log = structlog.get_logger("fairq.worker")


@define(eq=False)
class Reloader:
    """Runs a worker's command; on a change it stops the worker once, lets it finish its tasks, and starts it again."""

    command: Sequence[str]
    directory: Path
    _process: trio.Process | None = field(default=None, init=False)
    _must_stop: bool = field(default=False, init=False)
    _is_stopping: bool = field(default=False, init=False)
    _changed: trio.Event = field(factory=trio.Event, init=False)

    async def run(self) -> int:
        """Run until a signal, or until the worker exits with 0 by itself; returns the worker's exit code."""
        # Cached bytecode is checked by seconds: two versions of one second look the same.
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        async with background(self._watch_files, self._watch_signals):
            while True:
                self._changed, self._must_stop = trio.Event(), False
                process = await trio.lowlevel.open_process(self.command, env=environment, start_new_session=True)
                self._process = process
                try:
                    code = await process.wait()
                finally:
                    self._tell()  # also when this task is cancelled
                if self._is_stopping or (code == 0 and not self._changed.is_set()):
                    return code
                if not self._changed.is_set():
                    log.warning("worker ended; it restarts when a file changes", code=code)
                    await self._changed.wait()
                    if self._is_stopping:
                        return code

    def _tell(self) -> None:
        self._must_stop = True
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def _watch_files(self) -> None:
        try:
            from watchfiles import PythonFilter, awatch
        except ImportError:
            raise SettingsError("--reload needs watchfiles: pip install 'fairq[reload]'", field="reload") from None

        async for changes in awatch(self.directory, watch_filter=PythonFilter()):
            log.info("files changed", files=sorted({Path(path).name for _, path in changes}))
            self._changed.set()
            if not self._must_stop:
                self._tell()

    async def _watch_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if not self._must_stop or self._is_stopping:  # a second signal ends the worker at once
                    self._tell()
                self._is_stopping = True
                self._changed.set()
