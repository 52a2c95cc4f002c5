"""A queue in plain Python: the specification of the function library; clock and random values are arguments.

It is exact: with the same clock and random values the same calls give the same replies and accounts, bit by bit. It has
no keys and no packed values, and no shortcuts: every method changes lists and then seats the tenants that it touched.
fair_pick.py chooses the tenants that are served next.
"""

from __future__ import annotations

from fairq.model.queue.claim import Claiming
from fairq.model.queue.links import Linking
from fairq.model.queue.operate import Operating
from fairq.model.queue.tick import Ticking


class Model(Claiming, Ticking, Operating, Linking):
    """The queue: all its verbs."""
