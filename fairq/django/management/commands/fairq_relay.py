"""`manage.py fairq_relay`: enqueues the tasks of the outbox."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from fairq.django.enqueueing import client
from fairq.django.logs import log_open
from fairq.errors import FairqError


class Command(BaseCommand):
    """Any number may run; a kill at any moment loses nothing."""

    help = "Enqueue the tasks of the outbox, until it is stopped. Any number may run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--database", default="default", help="Database of the outbox.")
        parser.add_argument("--interval", type=float, default=0.5, help="Seconds between reads that find few tasks.")

    def handle(self, *, database: str, interval: float, **_: Any) -> None:
        """Run it."""
        from fairq.django.relay import relay

        try:
            with log_open():
                relay(client(), database, interval)
        except FairqError as error:
            raise CommandError(error.message) from None
        except KeyboardInterrupt:
            return
