"""Tokens: `fq_<role>_<id>_<secret>_<check>`. The store knows only the SHA-256 of a token; its secret has 160 bits."""

from __future__ import annotations

import hashlib
import secrets
import zlib
from typing import Annotated

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.rules import QUEUES, TENANT, check_fields
from fairq.model.token_rules import HASH, LABEL, TENANTS, TOKEN_ID
from fairq.wire.terms import ROLE, Role


@frozen
class TokenRecord:
    """A token's record in the store. `queues` None: all queues.

    `tenant`: of a producer or a worker, a pattern of the names of tenants for which it may enqueue, or schedule. None:
    all for a producer, none for a worker. `label`: what people call it. `expires_at_ms` 0:
    never.
    """

    id: Annotated[str, TOKEN_ID]
    role: Annotated[str, ROLE]
    hash: Annotated[str, HASH]
    tenant: Annotated[str | None, TENANTS] = None
    queues: Annotated[list[str] | None, QUEUES] = None
    created_at_ms: int = 0
    label: Annotated[str, LABEL] = ""
    expires_at_ms: int = 0

    def check(self) -> None:
        """Check all fields but the times. Raises: BadRequest, naming the field."""
        check_fields(self)
        if self.role == Role.TENANT.value and self.tenant is None:
            raise BadRequest("a token of role tenant needs a tenant", field="tenant")
        if self.role == Role.TENANT.value:
            TENANT.check(self.tenant, "tenant")
        elif self.role not in (Role.PRODUCER.value, Role.WORKER.value) and self.tenant is not None:
            raise BadRequest(f"a token of role {self.role} has no tenant", field="tenant")


def hash_token(token: str) -> str:
    """Return the hash of a token, as the store keeps it."""
    return hashlib.sha256(token.encode()).hexdigest()


def make_token(role: Role) -> tuple[str, str]:
    """Make a new token; returns its id and its text."""
    id = secrets.token_hex(6)
    body = f"fq_{role.value}_{id}_{secrets.token_hex(20)}"
    return id, f"{body}_{zlib.crc32(body.encode()):08x}"


def token_id(token: str) -> str | None:
    """Return the id inside a token, or None if its form or its checksum is wrong."""
    body, _, check = token.rpartition("_")
    parts = body.split("_")
    if len(parts) != 4 or parts[0] != "fq" or f"{zlib.crc32(body.encode()):08x}" != check:
        return None
    return parts[2]
