"""Tokens: `fq_<role>_<id>_<secret>_<check>`. The store knows only the SHA-256 of a token; its secret has 160 bits."""

from __future__ import annotations

import hashlib
import re
import secrets
import zlib

from attrs import frozen

from fairq.errors import BadRequest
from fairq.model.checks import MAX_TENANT_CHARS, TENANT_PATTERN, check_name, check_tenant
from fairq.wire.terms import Role

ID_PATTERN = re.compile(r"[a-z0-9]{4,32}\Z")
MAX_LABEL_CHARS = 80
HASH_PATTERN = re.compile(r"[0-9a-f]{64}\Z")


@frozen
class TokenRecord:
    """A token's record in the store. `queues` None: all queues.

    `tenant`: of a producer, a pattern of tenants' names; None: all. `label`: what people call it. `expires_at_ms` 0:
    never.
    """

    id: str
    role: str
    hash: str
    tenant: str | None = None
    queues: list[str] | None = None
    created_at_ms: int = 0
    label: str = ""
    expires_at_ms: int = 0

    def check(self) -> None:
        """Check all fields but the times. Raises: BadRequest, naming the field."""
        if not ID_PATTERN.match(self.id):
            raise BadRequest("id must be 4 to 32 characters of a-z, 0-9", field="id")
        if self.role not in {role.value for role in Role}:
            raise BadRequest(f"role must be one of {', '.join(role.value for role in Role)}", field="role")
        if not HASH_PATTERN.match(self.hash):
            raise BadRequest("hash must be the SHA-256 of the token, as 64 hexadecimal digits", field="hash")
        if self.role == Role.TENANT.value and self.tenant is None:
            raise BadRequest("tenant is required for role tenant", field="tenant")
        if self.tenant is not None:
            self._check_tenant(self.tenant)
        if self.queues == []:
            raise BadRequest("queues must name at least 1 queue; null means all queues", field="queues")
        for queue in self.queues or ():
            check_name(queue, "queues")
        if len(self.label) > MAX_LABEL_CHARS or not self.label.isprintable():
            message = f"label must be at most {MAX_LABEL_CHARS} characters, and none of them a control character"
            raise BadRequest(message, field="label")

    def _check_tenant(self, tenant: str) -> None:
        if self.role == Role.PRODUCER.value:
            check_tenant_pattern(tenant)
        elif self.role == Role.TENANT.value:
            check_tenant(tenant)
        else:
            raise BadRequest(f"tenant is not allowed for role {self.role}", field="tenant")


def check_tenant_pattern(pattern: str) -> str:
    """Return a pattern of tenants' names: one with `*` for any part. Raises: BadRequest."""
    named = pattern.replace("*", "")
    if pattern == "*" or (TENANT_PATTERN.match(named) and len(pattern) <= MAX_TENANT_CHARS):
        return pattern
    message = f"tenant must be a tenant's name, with * for any part of it, not {pattern!r:.80}"
    raise BadRequest(message, field="tenant")


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
