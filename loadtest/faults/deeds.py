"""What is done to processes and links: the faults that do not depend on how the store is set up."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random

import trio

from loadtest.faults.kept import Kept
from loadtest.faults.link import Link
from loadtest.processes import RunFailed

Deed = Callable[[], Awaitable[float]]  # does a fault and heals it; returns when it began
STOPPED_S = 3.0  # a process stands still, or a link is held, for so long: longer than a store's probe, not than a lease
SLOW_S = 0.05  # for each piece on a slow link
_LOST_S = 30.0  # until something has come that could be lost, held, late or sliced


def of_processes(name: str, choose: Callable[[], Awaitable[Kept]]) -> dict[str, Deed]:
    """Return the faults of processes of one kind."""

    async def end_by(number: signal.Signals) -> float:
        process, began = await choose(), trio.current_time()
        await process.end(number)
        return began

    async def stop() -> float:
        process, began = await choose(), trio.current_time()
        async with process.still():
            await trio.sleep(STOPPED_S)
        return began

    kill, end = partial(end_by, signal.SIGKILL), partial(end_by, signal.SIGTERM)
    return {f"kill {name}": kill, f"end {name}": end, f"stop {name}": stop}


def of_links(name: str, links: Callable[[], Sequence[Link]], draws: Random) -> dict[str, Deed]:
    """Return the faults of links to one end; one of them is chosen, and another one if nothing came on that."""

    def fault(begin: Callable[[Link], None], seconds: float = STOPPED_S) -> Deed:
        async def do() -> float:
            with trio.move_on_after(_LOST_S):
                while True:
                    link, began = await used(links, draws), trio.current_time()
                    before = link.hindered
                    begin(link)
                    await trio.sleep(seconds)
                    link.heal()
                    if not seconds or link.hindered > before:
                        return began
            raise RunFailed(f"nothing came on {name} in {_LOST_S:g} s")

        return do

    async def lose_reply() -> float:
        link = await used(links, draws)
        link.lose_reply()
        with trio.move_on_after(_LOST_S):
            await link.lost.wait()
            return trio.current_time()
        raise RunFailed(f"no reply came on {name} in {_LOST_S:g} s")

    def slow(link: Link) -> None:
        link.delay_s = SLOW_S

    def slice_up(link: Link) -> None:
        link.piece = 1

    faults = {
        "cut": fault(Link.cut, 0), "hold": fault(Link.hold), "slow": fault(slow), "slice": fault(slice_up),
        "half-open": fault(Link.mute, 0), "lose a reply of": lose_reply,
    }  # fmt: skip
    return {f"{how} {name}": deed for how, deed in faults.items()}


async def used(links: Callable[[], Sequence[Link]], draws: Random) -> Link:
    """Choose a link that something passes through. Raises: RunFailed."""
    with trio.move_on_after(_LOST_S):
        while not (found := [link for link in links() if link.is_used]):  # noqa: ASYNC110 - another process connects
            await trio.sleep(0.05)
        return draws.choice(found)
    raise RunFailed(f"nothing came on any link in {_LOST_S:g} s")
