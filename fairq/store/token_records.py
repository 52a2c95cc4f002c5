"""Records of tokens, when each was last used, and the count of those that were deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define

from fairq.store import keys
from fairq.store.cluster import Cluster
from fairq.store.connection import Connection

_LOOKS = 250  # tokens in one call


@define(eq=False)
class Tokens:
    """The tokens of a store; methods raise as Store's do."""

    connection: Connection | Cluster

    async def read(self, id: str) -> bytes | None:
        """Read a token's record (JSON), if there is one."""
        record: bytes | None = await self.connection.call("HGET", keys.TOKENS, id)
        return record

    async def read_all(self) -> list[bytes]:
        """Read all token records."""
        flat: list[bytes] = await self.connection.call("HGETALL", keys.TOKENS)
        return flat[1::2]

    async def write(self, id: str, record: bytes) -> bool:
        """Store a token record under a new id; returns False if the id is taken."""
        return bool(await self.connection.call("HSETNX", keys.TOKENS, id, record))

    async def delete(self, id: str) -> bool:
        """Delete a token record and notify all servers; returns whether it was there."""
        if await self.connection.call("HEXISTS", keys.TOKENS, id):
            await self.connection.call("INCR", keys.REVOCATIONS)  # first: servers that see it look for a while
        deleted = bool(await self.connection.call("HDEL", keys.TOKENS, id))
        await self.connection.call("HDEL", keys.TOKEN_USES, id)
        await self.connection.call("PUBLISH", keys.REVOKED, id)
        return deleted

    async def write_uses(self, uses: Mapping[str, int]) -> None:
        """Write when tokens were last used (id -> ms), for those that exist."""
        known = sorted(await self.known(list(uses)))
        for start in range(0, len(known), _LOOKS):
            pairs = [word for id in known[start : start + _LOOKS] for word in (id, uses[id])]
            await self.connection.call("HSET", keys.TOKEN_USES, *pairs)

    async def read_uses(self) -> dict[str, int]:
        """Read when tokens were last used (id -> ms)."""
        flat = await self.connection.call("HGETALL", keys.TOKEN_USES)
        return {id.decode(): int(at) for id, at in zip(flat[::2], flat[1::2], strict=True)}

    async def count_revocations(self) -> int:
        """Return how many tokens were deleted so far, for servers that may have missed a message."""
        return int(await self.connection.call("GET", keys.REVOCATIONS) or 0)

    async def known(self, ids: Sequence[str]) -> set[str]:
        """Return the ids among these that belong to a token."""
        known: set[str] = set()
        for start in range(0, len(ids), _LOOKS):
            some = ids[start : start + _LOOKS]
            records = await self.connection.call("HMGET", keys.TOKENS, *some)
            known.update(id for id, record in zip(some, records, strict=True) if record is not None)
        return known
