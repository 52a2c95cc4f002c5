"""A queue in plain Python: what the function library must do; clock and random values are arguments.

It is exact: with the same clock and random values the same calls give the same replies and accounts, bit by bit.
It knows nothing of keys or packed values, and forgets no path: every method changes lists and then seats
whom it touched. Who is served next is in fair_pick.py.
"""

from __future__ import annotations

from fairq.model.queue.claim import Claiming
from fairq.model.queue.links import Linking
from fairq.model.queue.operate import Operating
from fairq.model.queue.tick import Ticking


class Model(Claiming, Ticking, Operating, Linking):
    """The queue: all its verbs."""
