"""The command line: one file per group of commands, and one place where errors become exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError

from fairq.cli.dead import dead
from fairq.cli.demo import demo
from fairq.cli.enqueue import enqueue
from fairq.cli.queues import queues
from fairq.cli.serve import serve
from fairq.cli.tenants import tenants
from fairq.cli.tokens import tokens
from fairq.cli.worker import worker
from fairq.errors import BadRequest, FairqError, SettingsError
from fairq.scopes import unwrap

app = App(
    name="fairq",
    help="A multi-tenant fair-share task queue: whoever floods it waits behind his own flood.",
    help_format="plaintext",
    result_action="return_value",
)
for _command in (serve, worker, enqueue, demo):
    app.command(_command)
for _group in (tenants, queues, dead, tokens):
    app.command(_group)


def run(argv: Sequence[str]) -> int:
    """Run one command; returns the exit code."""
    try:
        result = app(list(argv), exit_on_error=False, print_error=True, verbose=False)
    except CycloptsError:
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 1
    except (FairqError, BaseExceptionGroup) as raised:
        error = unwrap(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if isinstance(error, KeyboardInterrupt):
            return 130
        if not isinstance(error, FairqError):
            raise
        print(f"fairq: {error.message}", file=sys.stderr)
        return 2 if isinstance(error, SettingsError | BadRequest) else 1
    return result if isinstance(result, int) else 0
