"""Authentication: bearer tokens to identities, and the tokens' records."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from fnmatch import fnmatchcase

import cattrs
import orjson
from attrs import asdict, define, evolve, frozen

from fairq.errors import BadRequest, FairqError, Forbidden, TokenExpired, Unauthorized
from fairq.model.checks import check_tenant
from fairq.model.operator_views import TokenRow
from fairq.store.store import Store
from fairq.tokens import TokenRecord, hash_token, token_id
from fairq.wire.terms import Role

_DEV_TENANT = "dev-tenant:"
_DEV_ROLES = {
    "dev-producer": Role.PRODUCER,
    "dev-worker": Role.WORKER,
    "dev-operator": Role.OPERATOR,
    "dev-viewer": Role.VIEWER,
}


@frozen
class Identity:
    """The identity that a token gives. `queues` None: all; `token_id` empty: a development token.

    `tenants`: a pattern of the tenants for which a producer may enqueue, and a worker schedule; empty: none.
    """

    role: Role
    tenant: str = ""
    queues: frozenset[str] | None = None
    token_id: str = ""
    tenants: str = "*"
    label: str = ""
    expires_at_ms: int = 0

    @property
    def account(self) -> Hashable:
        """The account that requests count on: the tenant's, or the token's."""
        return self.tenant or (self.role, self.token_id)

    def check_queue(self, queue: str, field: str = "queue") -> str:
        """Return the queue's name if this identity may use it. Raises: Forbidden."""
        if self.queues is not None and queue not in self.queues:
            raise Forbidden(f"this token may not use queue {queue}", field=field)
        return queue

    def check_tenant(self, tenant: str, field: str = "tenant") -> str:
        """Return the tenant's name if this identity may act for it. Raises: Forbidden."""
        if self.tenants != "*" and not fnmatchcase(tenant, self.tenants):
            raise Forbidden(f"this token may not use tenant {tenant}", field=field)
        return tenant


@define(eq=False)
class Auth:
    """Looks tokens up in the store; `is_dev` admits the development tokens too."""

    store: Store
    is_dev: bool = False
    on_use: Callable[[str], None] = lambda id: None  # called with the id of a token that a client has come with

    async def identify(self, token: str) -> Identity:
        """Return the identity of a token. Raises: Unauthorized, TokenExpired; Unavailable without the store."""
        if token.startswith("dev-"):
            if not self.is_dev:
                raise Unauthorized("unknown token: dev- tokens are for a server with --dev")
            return self._identify_dev(token)
        return await self.identify_hashed(token_id(token), hash_token(token))

    async def identify_hashed(self, id: str | None, hashed: str) -> Identity:
        """Return the identity of a token by its id and hash alone, as `identify` does."""
        record = await self._read(id) if id else None
        if record is None or not hmac.compare_digest(record.hash, hashed):
            raise Unauthorized("unknown token")
        return self._admit(record)

    async def renew(self, identity: Identity) -> Identity:
        """Return an identity as its token gives it now. Raises: as `identify`."""
        if not identity.token_id:
            return identity
        record = await self._read(identity.token_id)
        if record is None:
            raise Unauthorized("the token was revoked")
        return self._admit(record)

    async def _read(self, id: str) -> TokenRecord | None:
        record = await self.store.tokens.read(id)
        return cattrs.structure(orjson.loads(record), TokenRecord) if record else None

    def _admit(self, record: TokenRecord) -> Identity:
        """Return the identity that a token gives, and note its use. Raises: TokenExpired, by this server's clock."""
        if record.expires_at_ms and record.expires_at_ms <= time.time() * 1000:
            at = datetime.fromtimestamp(record.expires_at_ms / 1000, UTC).isoformat(" ", "seconds")
            raise TokenExpired(f"the token {record.id} expired at {at}")
        self.on_use(record.id)
        return _identity_of(record)

    @staticmethod
    def _identify_dev(token: str) -> Identity:
        if token in _DEV_ROLES:
            return Identity(_DEV_ROLES[token], label=token)
        if token.startswith(_DEV_TENANT):
            try:
                return Identity(Role.TENANT, check_tenant(token.removeprefix(_DEV_TENANT)), label=token)
            except FairqError as error:
                raise Unauthorized(error.message) from None
        raise Unauthorized(f"unknown development token: expected {_DEV_TENANT}<name>, {', '.join(_DEV_ROLES)}")

    async def create(self, record: TokenRecord, expires_in_ms: int | None = None) -> None:
        """Store a token's record (None: it never expires); storing it again is not an error. Raises: BadRequest."""
        record.check()
        now_ms = int(time.time() * 1000)
        expires_at_ms = now_ms + expires_in_ms if expires_in_ms else 0
        stamped = evolve(record, created_at_ms=now_ms, expires_at_ms=expires_at_ms)
        if await self.store.tokens.write(record.id, orjson.dumps(asdict(stamped))):
            return
        known = await self._read(record.id)
        if known is None or known.hash != record.hash:
            raise BadRequest("id is already used by another token", field="id")

    async def tokens(self) -> list[TokenRow]:
        """List the tokens, oldest first."""
        records, uses = await self.store.tokens.read_all(), await self.store.tokens.read_uses()
        tokens = [cattrs.structure(orjson.loads(record), TokenRow) for record in records]
        rows = [evolve(token, used_at_ms=uses.get(token.id, 0)) for token in tokens]
        return sorted(rows, key=lambda token: (token.created_at_ms, token.id))

    async def revoke(self, id: str) -> bool:
        """Delete a token and have all servers close its connections; returns whether it was there."""
        return await self.store.tokens.delete(id)


def _identity_of(record: TokenRecord) -> Identity:
    """Return the identity that a token's record gives."""
    queues = None if record.queues is None else frozenset(record.queues)
    role, tenant, tenants = Role(record.role), "", "*"
    if role is Role.PRODUCER:
        tenants = record.tenant or "*"
    elif role is Role.WORKER:
        tenants = record.tenant or ""
    else:
        tenant = record.tenant or ""
    return Identity(role, tenant, queues, record.id, tenants, record.label, record.expires_at_ms)


def bearer_token(headers: Sequence[tuple[bytes, bytes]]) -> str:
    """Find the token in a request's headers. Raises: Unauthorized; BadRequest if there are two."""
    found = [value.decode("latin-1") for name, value in headers if name.lower() == b"authorization"]
    if len(found) > 1:
        raise BadRequest("the header Authorization is given twice", field="Authorization")
    scheme, _, token = "".join(found).partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    raise Unauthorized("missing token: send the header `Authorization: Bearer <token>`")
