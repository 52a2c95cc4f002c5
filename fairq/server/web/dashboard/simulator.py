"""The program in which the Simulate page computes: JSON in, JSON out. It imports no trio, so it starts at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import orjson
from attrs import asdict, frozen
from cattrs import Converter

from fairq.errors import FairqError, from_code
from fairq.model.simulation.comparison import Comparison, compare
from fairq.model.simulation.observed import Observed
from fairq.model.simulation.setup import Proposal

NICENESS = 10  # it gets a tenth of a processor that the server needs itself
LONGEST_S = 15  # the server kills it earlier, unless that is killed itself

_converter = Converter(detailed_validation=False)
_converter.register_structure_hook(float, lambda number, _: number)  # 10 stays 10: a limit is a whole number
_dumps = partial(orjson.dumps, default=partial(asdict, recurse=False))


@frozen
class Request:
    """What to simulate."""

    observed: Observed
    proposal: Proposal


def write_request(observed: Observed, proposal: Proposal) -> bytes:
    """Write the program's input."""
    return _dumps(Request(observed, proposal))


def read_reply(text: bytes) -> Comparison:
    """Read the program's output. Raises: the FairqError that it met."""
    reply: Mapping[str, Any] = orjson.loads(text)
    if "found" in reply:
        return _converter.structure(reply["found"], Comparison)
    raise from_code(**reply)


def answer(text: bytes) -> bytes:
    """Carry out a request."""
    request = _converter.structure(orjson.loads(text), Request)
    try:
        return _dumps({"found": compare(request.observed, request.proposal)})
    except FairqError as error:
        return _dumps({"code": error.code, "message": error.message, "field": error.field})


def main() -> None:
    """Answer one request, and end."""
    signal.alarm(LONGEST_S)
    with suppress(OSError):
        os.nice(NICENESS)
    sys.stdout.buffer.write(answer(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main()
