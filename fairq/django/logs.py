"""The log of the commands."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairq.cli.log_writer import open_log
from fairq.cli.output import configure_logging


@contextmanager
def log_open() -> Iterator[Callable[[], object]]:
    """Write the log as `fairq worker` does while the block lasts, unless LOGGING in the settings says where it goes.

    Gives a function that waits until all lines are written.
    """
    if logging.getLogger("fairq").hasHandlers():
        yield bool
        return
    with open_log() as writer:
        configure_logging("info", to=writer)
        yield writer.close
