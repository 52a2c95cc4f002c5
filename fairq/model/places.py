"""Names of places: `<queue>` for a queue with one partition, `<queue>/<partition>` for each of several.

fairq/store/partitions.py has the theory.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class AwayPartition:
    """A partition that does not answer (empty: the whole queue), and the address of its primary, as far as known."""

    partition: str
    primary: str


def place_of(queue: str, partition: str) -> str:
    """Name the place of a queue, or of one of its partitions."""
    return f"{queue}/{partition}" if partition else queue


def split_place(place: str) -> tuple[str, str]:
    """Return a place's queue, and its partition (empty if the queue has one only)."""
    queue, _, partition = place.partition("/")
    return queue, partition


def queue_of(place: str) -> str:
    """Return the queue that has a place."""
    return place.partition("/")[0]


def partition_of(place: str) -> str:
    """Return the partition in a place's name; empty if the queue has one only."""
    return place.partition("/")[2]


def is_partition(place: str) -> bool:
    """True if a place is one of several."""
    return "/" in place
