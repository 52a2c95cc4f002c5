"""A simulation in a process of its own, so that this server's tasks wait neither for it nor for the interpreter's lock.

One runs at a time, at low priority. It is killed when it took DEADLINE_S, or the server stops.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

import structlog
import trio

from fairq.errors import TooMany, Unavailable
from fairq.model.simulation.comparison import Comparison
from fairq.model.simulation.observed import Observed
from fairq.model.simulation.setup import Proposal
from fairq.server.web.dashboard import simulator

log = structlog.get_logger("fairq.server")

DEADLINE_S = 8.0
MAX_REPLY_BYTES = 1_000_000  # a reply tells of some 20 tenants in a few thousand
COMMAND = (sys.executable, "-P", "-m", simulator.__name__)  # nothing is imported from the working directory
LIMITER = trio.CapacityLimiter(1)


async def compare_apart(observed: Observed, proposal: Proposal) -> Comparison:
    """Simulate in another process. Raises: TooMany when that takes too long; Unavailable; BadRequest, NotFound."""
    with trio.move_on_after(DEADLINE_S):
        async with LIMITER:
            reply = await _run(simulator.write_request(observed, proposal))
        return simulator.read_reply(reply)
    raise TooMany("the server is too busy to simulate; `fairq simulate` does it elsewhere")


async def _run(request: bytes) -> bytes:
    """Return what the process writes. Raises: Unavailable."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}  # it needs no secrets
    try:
        process = await trio.lowlevel.open_process(
            COMMAND, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise Unavailable(f"cannot start the simulation's process: {error.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(trio.BrokenResourceError):  # it has died: seen below
            async with process.stdin:
                await process.stdin.send_all(request)
        reply = bytearray()
        async for part in process.stdout:
            reply += part
            if len(reply) > MAX_REPLY_BYTES:
                raise Unavailable(f"the simulation's reply has more than {MAX_REPLY_BYTES:,} bytes")
        if code := await process.wait():
            log.error("simulation died", code=code)
            raise Unavailable(f"the simulation's process died with code {code}; `fairq simulate` does it elsewhere")
        return bytes(reply)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdin.aclose()
            await process.stdout.aclose()
