"""Where the tenants of a queue live: in one of its partitions, each of which is a fair queue of its own in the store.

Most queues have one partition, and live on one primary. A queue with P of them has P *places*, and each tenant lives in
one, by a hash of its name: so all promises about one tenant hold unchanged, and no tenant ever moves by our hand. P is
chosen when the queue is made, and changes by a restore (placing.py). Capacity grows as primaries are added, and Valkey
Cluster moves slots to them.

A place is named `<queue>/<P>.<tag>`; that of a queue with one partition has the queue's name. The tags are chosen so
that the n-th place falls into the n-th P-th of a cluster's slots: 12 places over three primaries are 4, 4 and 4. P is
part of the name, so a server that believes in another P touches no key of this queue.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from zlib import crc32

from redis.crc import key_slot

from fairq.errors import BadRequest
from fairq.model.places import partition_of, place_of, queue_of, split_place
from fairq.model.queues import SETTING_RANGES
from fairq.model.rules import QUEUE
from fairq.store.topology import SLOTS

MAX_PARTITIONS = SETTING_RANGES["partitions"][1]
Places = tuple[str, ...]
_SEVERAL = frozenset(map(str, range(2, MAX_PARTITIONS + 1)))


@lru_cache(1_000)
def places_of(queue: str, partitions: int) -> Places:
    """Name the places of a queue with this number of partitions."""
    if partitions == 1:
        return (queue,)
    found = (place_of(queue, f"{partitions}.{tag}") for tag in count())
    by_part: dict[int, str] = {}
    while len(by_part) < partitions:
        place = next(found)
        by_part.setdefault(key_slot(place.encode()) * partitions // SLOTS, place)
    return tuple(by_part[part] for part in range(partitions))


def place_in(places: Places, tenant: str) -> str:
    """Return the place of a tenant."""
    return places[0] if len(places) == 1 else places[crc32(tenant.encode()) % len(places)]


def check_place(place: str, field: str) -> str:
    """Return the name of a queue, or of one of its places. Raises: BadRequest."""
    queue, tag = split_place(str(place))
    QUEUE.check(queue, field)
    partitions = tag.partition(".")[0]
    if tag and not (partitions in _SEVERAL and place in places_of(queue, int(partitions))):
        raise BadRequest(f"invalid {field}: no partition has this name", field=field)
    return place


def siblings(place: str) -> Places:
    """Name all places of the queue of a place."""
    return places_of(queue_of(place), int(partition_of(place).partition(".")[0] or 1))
