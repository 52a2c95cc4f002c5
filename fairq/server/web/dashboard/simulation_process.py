"""A simulation in a process of its own, so that this server's tasks wait neither for it nor for the interpreter's lock.

One runs at a time, at low priority. It is killed when its page gives up, or the server stops.
"""

from __future__ import annotations

import os
import pickle
import sys

import structlog
import trio

from fairq.errors import FairqError, Unavailable
from fairq.model.simulation.comparison import Comparison
from fairq.model.simulation.observed import Observed
from fairq.model.simulation.setup import Proposal
from fairq.server.web.dashboard import simulator

log = structlog.get_logger("fairq.server")

COMMAND = (sys.executable, "-P", "-m", simulator.__name__)  # nothing is imported from the working directory
LIMITER = trio.CapacityLimiter(1)


async def compare_apart(observed: Observed, proposal: Proposal) -> Comparison:
    """Simulate in another process. Raises: Unavailable, BadRequest, NotFound."""
    async with LIMITER:
        found: Comparison | FairqError = pickle.loads(await _run(pickle.dumps((observed, proposal))))
    if isinstance(found, FairqError):
        raise found
    return found


async def _run(request: bytes) -> bytes:
    """Return what the process writes. Raises: Unavailable."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("FAIRQ_")}  # it needs no secrets
    try:
        done = await trio.run_process(
            COMMAND, stdin=request, capture_stdout=True, check=False, deliver_cancel=_kill, env=own,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"cannot start the simulation's process: {error.strerror}") from None
    if done.returncode:
        log.error("simulation died", code=done.returncode)
        died = f"the simulation's process died with code {done.returncode}; `fairq simulate` does it elsewhere"
        raise Unavailable(died)
    return done.stdout


async def _kill(process: trio.Process) -> None:
    process.kill()
