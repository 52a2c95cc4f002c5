"""Pictures that are redrawn on a terminal until interrupted; without a terminal, one picture."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import trio
from cyclopts import Parameter

from fairq.cli.options import Server, run_with
from fairq.cli.output import make_console
from fairq.errors import OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairq.client.operator import OperatorClient

Watch = Annotated[bool, Parameter(negative=(), help="Redraw every second, until interrupted (on a terminal).")]
ALL_LINES = 1_000_000
_BUSY = 0.1  # of the time at most goes into reading: large pictures are drawn less often

Picture = Callable[["OperatorClient", int], Awaitable["RenderableType"]]  # of at most this number of lines


def watch(server: Server | None, picture: Picture, *, every_s: float = 1.0, once: bool = False) -> None:
    """Draw a picture each `every_s`, or less often if it takes long; once if asked to, or if the output is no terminal.

    While the server does not answer, the last picture stays, and a line says so.
    """
    from rich.console import Group
    from rich.live import Live

    console = make_console()

    async def draw(client: OperatorClient) -> None:
        if once or not sys.stdout.isatty():
            console.print(await picture(client, ALL_LINES))
            return
        shown: RenderableType = ""
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                trouble, began = "", trio.current_time()
                try:
                    shown = await picture(client, console.height)
                except (Unavailable, OutcomeUnknown) as error:
                    trouble = f"no answer: {error.message}"
                live.update(Group(trouble, shown) if trouble else shown, refresh=True)
                await trio.sleep(max(every_s, (trio.current_time() - began) / _BUSY))

    try:
        run_with(server, draw)
    except* KeyboardInterrupt:
        pass
