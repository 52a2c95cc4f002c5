"""The program in which the Simulate page computes, by pickles. It imports no trio, so it starts at once."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress

from fairq.errors import FairqError
from fairq.model.simulation.comparison import Comparison, compare

NICENESS = 10  # it gets a tenth of a processor that the server needs itself
LONGEST_S = 15  # the server kills it earlier, unless that is killed itself


def main() -> None:
    """Answer one request, and end."""
    signal.alarm(LONGEST_S)
    with suppress(OSError):
        os.nice(NICENESS)
    observed, proposal = pickle.load(sys.stdin.buffer)
    found: Comparison | FairqError
    try:
        found = compare(observed, proposal)
    except FairqError as error:
        found = error
    pickle.dump(found, sys.stdout.buffer)


if __name__ == "__main__":
    main()
