"""`manage.py fairq_worker`: runs the handlers of an app."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

from fairq.cli.ending import ending
from fairq.cli.signals import run_in, work_until_stopped
from fairq.cli.worker import load_app
from fairq.django.conf import setting
from fairq.django.connections import install
from fairq.django.logs import log_open
from fairq.errors import FairqError


class Command(BaseCommand):
    """The worker of `fairq worker`, with Django's settings, connections and reloader, under asyncio."""

    help = "Run the handlers of a fairq.Worker, until SIGTERM or ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; they are those of `fairq worker`."""
        parser.add_argument("app", nargs="?", help="The fairq.Worker, as module:app (default: FAIRQ['APP']).")
        parser.add_argument("--concurrency", "-c", type=int, help="Tasks at once (default: the app's).")
        parser.add_argument("--queue", action="append", help="A queue to work for; repeatable (default: the app's).")
        parser.add_argument("--name", help="Unique name that the worker keeps across restarts.")
        parser.add_argument("--grace", type=float, default=30.0, help="Seconds that tasks get to finish at a stop.")
        parser.add_argument("--burst", action="store_true", help="Exit when no task is ready.")
        parser.add_argument("--reload", action="store_true", help="For development: start again when code changes.")

    def handle(self, *, reload: bool, **options: Any) -> None:
        """Run it, or have Django's reloader run it in a thread of a process that it starts again."""
        with log_open() as flush:
            if reload:
                autoreload.run_with_reloader(self.work, flush=None, **options)
            else:
                self.work(flush=flush, **options)

    def work(
        self,
        *,
        app: str | None,
        concurrency: int | None,
        queue: list[str] | None,
        name: str | None,
        grace: float,
        burst: bool,
        flush: Callable[[], object] | None,
        **_: Any,
    ) -> None:
        """Work until it is stopped; `flush`, unless it is reloaded, writes what is logged. Raises: CommandError."""
        path = app or setting("APP")
        if not path:
            raise CommandError("name the fairq.Worker, as module:app, or set FAIRQ['APP'] in the settings")
        try:
            found = load_app(path)
            install(found)
            found.url = found.url or setting("URL")
            found.token = found.token or setting("WORKER_TOKEN")
            found.concurrency = found.concurrency if concurrency is None else concurrency
            found.queues = queue or found.queues
            found.name = name or found.name
            found.log_tasks = True
            if flush is None:
                run_in("asyncio", partial(found.run, burst=burst))  # signals are the main thread's
                return
            with ending(found, flush) as end:
                run_in("asyncio", partial(work_until_stopped, found, end, grace, burst))
        except FairqError as error:
            raise CommandError(error.message, returncode=2) from None
