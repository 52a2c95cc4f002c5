"""Options shared by the commands, and the connection they describe."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeVar

import trio
from attrs import frozen
from cyclopts import Parameter

from fairq.cli.output import configure_logging
from fairq.client.defaults import DEFAULT_URL
from fairq.errors import SettingsError
from fairq.io.scopes import background

if TYPE_CHECKING:
    from fairq.client.operator import OperatorClient
    from fairq.wire.client_session import ClientSession

T = TypeVar("T")

_QUIET_S = 1.0  # without an answer, before a command says why

Json = Annotated[bool, Parameter(name="--json", negative=(), help="Print JSON, for scripts.")]


Url = Annotated[
    str | None,
    Parameter(env_var="FAIRQ_URL", help=f"URL of the server; commas separate several [default: {DEFAULT_URL}]."),
]
Token = Annotated[str | None, Parameter(env_var="FAIRQ_TOKEN", help="Token; the variable is safer than the option.")]


IfVersion = Annotated[
    str | None, Parameter(help="Change it only if it still has this version, as shown by --json or the list.")
]


Span = timedelta | float  # as 90, 90s, 5m, 1h30m, 7d


Moment = datetime | float  # as 2027-01-31T09:00:00+01:00, or seconds since the epoch


def seconds_of(span: Span | None) -> float | None:
    """Return the seconds of a span; None of none."""
    return span.total_seconds() if isinstance(span, timedelta) else span


def need_token(token: str | None, kind: str = "") -> str:
    """Return the token, of a kind that `fairq tokens create` makes. Raises: SettingsError without one."""
    if not token:
        create = f"fairq tokens create {kind}".strip()
        raise SettingsError(f"missing token: set --token or FAIRQ_TOKEN (`{create}` makes one)", field="token")
    return token


@Parameter(name="*")
@frozen
class Server:
    """The server to call, the token to use, and how long to try."""

    url: Url = None
    token: Token = None
    timeout: Annotated[float, Parameter(help="Seconds to keep trying a request.")] = 10.0


@asynccontextmanager
async def connected(server: Server) -> AsyncIterator[OperatorClient]:
    """Open a client for a command."""
    from fairq.client import driver
    from fairq.client.operator import OperatorClient

    async with (
        driver.connected(server.url, need_token(server.token), None) as caller,
        background(partial(_tell_waiting, caller.session, server.timeout)),
    ):
        yield OperatorClient(caller, server.timeout)


async def _tell_waiting(session: ClientSession, timeout: float) -> None:
    """Print on standard error why there is no answer yet, and how long a request is tried."""
    with trio.move_on_after(timeout):
        while True:
            await trio.sleep(_QUIET_S)
            if why := session.obstacle:
                print(f"fairq: no answer yet; trying for {timeout:g} s ({why})", file=sys.stderr)
                return


def run_with(server: Server | None, work: Callable[..., Awaitable[T]]) -> T:
    """Run `work(client)` against the server."""
    configure_logging("error")

    async def main() -> T:
        async with connected(server or Server()) as client:
            return await work(client)

    return trio.run(main)
