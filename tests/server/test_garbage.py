"""Collections stay short: what a full one has seen is not looked at again, and young objects are looked at often."""

from __future__ import annotations

import gc

import pytest
import trio
from websockets.protocol import Protocol, Side

from fairq.server import garbage
from fairq.server.engine.net.socket_connection import SocketConnection
from fairq.server.engine.net.transport import ServerTransport
from fairq.server.run import Served
from fairq.wire.server_session import ServerSession
from tests.store.waiting import wait_until

from .harness import WORKER, raw, running, tenant


class Cycle:
    """Something that leads back to itself."""

    def __init__(self) -> None:
        self.self = self


async def test_young_garbage_goes_and_what_a_full_collection_has_seen_is_frozen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "_YOUNG_S", 0.001)
    before, gone = gc.get_threshold(), trio.Event()

    class Noting(Cycle):
        def __del__(self) -> None:
            gone.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(garbage.control_collection)
        await wait_until(lambda: gc.get_threshold() != before)  # what is there by then is not looked at
        Noting()
        await gone.wait()
        gc.collect()
        frozen = gc.get_freeze_count()
        kept = [Cycle() for _ in range(500)]
        gc.collect()
        assert gc.get_freeze_count() >= frozen + len(kept)
        nursery.cancel_scope.cancel()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def _is_server_protocol(each: object) -> bool:
    return isinstance(each, Protocol) and each.side is Side.SERVER


async def test_a_connection_leaves_no_garbage_behind_when_it_ends(server_store: str) -> None:
    """Else a collection must look for it among all that others have; see fairq/server/garbage.py."""

    async def come_and_go(served: Served, ending: str) -> None:
        async with raw(served, WORKER) as worker, raw(served, tenant("ada")) as ada:
            await ada.enqueue("q", [ending])
            await worker.attach("q", credit=2)
            await worker.pushed(1)
            if ending == "closed":
                worker.transport.websocket.close(1000)
                await worker.transport.flush()
            elif ending == "strange":
                worker.transport.socket.send(b"\xff" * 100)
        await wait_until(lambda: not served.app.connections and not served.app.leases.kept)

    async with running(server_store, reconnect_grace=0.01) as served:
        await come_and_go(served, "first")
        gc.freeze()  # what is there by now is not looked at
        gc.disable()
        try:
            for ending in ("broken", "closed", "strange"):
                await come_and_go(served, ending)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            ours = (SocketConnection, ServerSession, ServerTransport)
            garbage = [each for each in gc.garbage if isinstance(each, ours) or _is_server_protocol(each)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.unfreeze()
            gc.enable()
    assert not garbage
