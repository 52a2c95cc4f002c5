"""Sentinel: which node is the primary now.

- All sentinels of the URL are asked at once. One that is cut off from the others may still name the old primary, so
  the answer with the newest configuration (the highest epoch) counts, when most have answered, or after _ANSWER_S.
- A server asks again every LOOK_S, and leaves a node that is no longer named. A primary that only its sentinels and
  replicas cannot reach still takes writes, and loses them when it comes back as a replica.
- It does not go back for an older configuration, unless most sentinels name that: they were set up anew.
- While no sentinel answers, a server stays with the primary that it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import structlog
import trio
from attrs import evolve

from fairq.errors import FairqError, StoreRefused, Unavailable
from fairq.io.scopes import background
from fairq.store.address import Address, node_address
from fairq.store.node import BROKEN, ask_once, cause_of

log = structlog.get_logger("fairq.store")

LOOK_S = 1.0
_ANSWER_S = 1.0


class Primary(NamedTuple):
    """A sentinel's answer; the newest is the greatest."""

    epoch: int
    host: str
    port: int


async def locate(address: Address, known: Primary | None = None) -> Primary:
    """Return the primary that the sentinels of an address name; `known`: their previous answer.

    Raises: StoreRefused if those that answer do not know this name, Unavailable if none answers.
    """
    answers: list[Primary] = []
    troubles: list[FairqError] = []

    async def ask(sentinel: Address, nursery: trio.Nursery) -> None:
        try:
            reply = await ask_once(sentinel, "SENTINEL", "MASTER", address.name)
        except StoreRefused as error:
            troubles.insert(0, StoreRefused(f"{sentinel.shown}: {error.message}"))
            return
        except (*BROKEN, FairqError) as error:
            troubles.append(Unavailable(f"{sentinel.shown}: {cause_of(error)}"))
            return
        primary = dict(zip(reply[::2], reply[1::2], strict=True))
        answers.append(Primary(int(primary[b"config-epoch"]), primary[b"ip"].decode(), int(primary[b"port"])))
        if are_most():
            nursery.cancel_scope.cancel()

    def are_most() -> bool:
        return 2 * len(answers) > len(address.sentinels)

    with trio.move_on_after(_ANSWER_S):
        async with trio.open_nursery() as nursery:
            for sentinel in address.sentinels:
                nursery.start_soon(ask, sentinel, nursery)
    if not answers:
        raise troubles[0] if troubles else Unavailable(f"no sentinel of {address.shown} answers")
    return max(answers) if known is None or are_most() else max(*answers, known)


def address_of(primary: Primary, address: Address) -> Address:
    """Return the primary's own address, with the login and database of the one that names its sentinels."""
    return evolve(node_address(address, primary.host, primary.port), database=address.database)


@asynccontextmanager
async def following(address: Address) -> AsyncIterator[Address]:
    """Yield where an address leads: to itself, or to the primary that its sentinels name.

    The block is cancelled when they name another one. Raises: as `locate`.
    """
    if not address.sentinels:
        yield address
        return
    known = await locate(address)
    primary = address_of(known, address)

    async def leave_when_moved() -> None:
        latest = known
        while True:
            await trio.sleep(LOOK_S)
            with suppress(FairqError):
                latest = await locate(address, latest)
            if (other := address_of(latest, address)) != primary:
                log.warning("the primary has moved", store=address.shown, primary=other.shown, was=primary.shown)
                scope.cancel()
                return

    with trio.CancelScope() as scope:
        async with background(leave_when_moved):
            yield primary
