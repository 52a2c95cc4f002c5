"""The rules of tokens' fields; fairq/tokens.py makes and reads tokens."""

from __future__ import annotations

import re

from fairq.errors import BadRequest
from fairq.model.checks import MAX_TENANT_CHARS, TENANT_PATTERN
from fairq.model.rules import TENANT, Rule, matching, text

_LABEL = text(0, 80)


def _check_tenants(pattern: str, field: str) -> str:
    named = pattern.replace("*", "")
    if pattern == "*" or (TENANT_PATTERN.match(named) and len(pattern) <= MAX_TENANT_CHARS):
        return pattern
    raise BadRequest(f"{field} must be a tenant's name, with * for any part of it, not {pattern!r:.80}", field=field)


def _check_label(label: str, field: str) -> str:
    if _LABEL.check(label, field).isprintable():
        return label
    raise BadRequest(f"{field} must have no control characters", field=field)


TOKEN_ID = matching(
    re.compile(r"[a-z0-9]{4,32}\Z"),
    "4 to 32 characters of a-z, 0-9",
    *("", "abc", "a" * 33, "ABCD", "ab_d", "abcd\n"),
    is_secret=True,
)
HASH = matching(
    re.compile(r"[0-9a-f]{64}\Z"),
    "the SHA-256 of the token, as 64 hexadecimal digits",
    *("", "0" * 63, "0" * 65, "A" * 64, "g" * 64),
    is_secret=True,
)
TENANTS = Rule(  # a tenant's name, or a pattern of them
    _check_tenants, text(1, MAX_TENANT_CHARS).schema | {"pattern": r"^[A-Za-z0-9._@+*-]+$"}, TENANT.bad[:-1]
)
LABEL = Rule(_check_label, _LABEL.schema | {"pattern": r"^[^\x00-\x1f\x7f]*$"}, ("a\nb", "\x1b[1m"), _LABEL.long)
