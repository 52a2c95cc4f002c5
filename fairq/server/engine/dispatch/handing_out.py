"""Divides the tasks of a claim among workers: each goes to the one with the most room.

Workers for which slots were reserved come first. Others take what those have no room for any more: a worker may have
left, or have less credit, since the claim was sent. Tasks that run alone go to the workers with the most room: they
soon hold nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from itertools import chain

from fairq.model.tasks import Lease
from fairq.server.engine.dispatch.capacity import Worker
from fairq.store.task_calls import Claim


def hand_out(
    claim: Claim, shares: Mapping[Worker, int], workers: Collection[Worker]
) -> tuple[dict[Worker, list[Lease]], list[Lease]]:
    """Return the tasks for each worker, and those for which no worker has room; `shares`: the reserved slots."""
    leases = sorted(claim.leases, key=lambda each: each.id not in claim.alone) if claim.alone else claim.leases
    room, slots = [], 0  # a heap, the most room first: minus the room, the worker's number
    for i, worker in enumerate(chain(shares, workers)):
        is_other = i >= len(shares)
        if is_other and slots >= len(leases):
            break
        if worker not in workers or (is_other and worker in shares):
            continue
        if (free := worker.account.free) and worker.may_take:  # as `free_of`: a task's way to its worker is short
            room.append((-free, i, worker))
            slots += free
    heapq.heapify(room)
    given: dict[Worker, list[Lease]] = {}
    at = 0
    while room and at < len(leases):
        free, i, worker = heapq.heappop(room)
        second = room[0][0] if room else 0
        some = leases[at : at + max(1, second - free)]  # until it has no more room than the second
        given.setdefault(worker, []).extend(some)
        at += len(some)
        if free + len(some) < 0:
            heapq.heappush(room, (free + len(some), i, worker))
    return given, leases[at:]
