"""The rules of names, ids and numbers."""

from __future__ import annotations

import math
import re
from typing import Protocol

from fairq.errors import BadRequest

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}\Z")
TASK_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_KNOWN = r"[A-Za-z0-9_-]{1,64}(\+[0-9a-f]{8}-[0-9]{1,16})?\Z"  # after the plus: a copy's webhook (webhooks.copy_id)
KNOWN_ID_PATTERN = re.compile(_KNOWN)
COPY_MARK = "+"  # stands in the id of a copy, between its task's and its webhook's
DERIVED = "from-"  # how ids begin that SDKs give to what handlers enqueue (lua/tasks/records.lua)
MAX_TENANT_CHARS = 128
TENANT_PATTERN = re.compile(rf"[A-Za-z0-9._@+-]{{1,{MAX_TENANT_CHARS}}}\Z")
FULL_ID_PATTERN = re.compile(rf"[A-Za-z0-9._@+-]{{1,128}}/{_KNOWN}")
BATCH_ID_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,40}\Z")
MAX_WORKER_CHARS = 64
WORKER_PATTERN = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_WORKER_CHARS}}}\Z")
MIN_WEIGHT, MAX_WEIGHT = 0.001, 10_000.0
MAX_SPAN_MS = 400 * 86_400_000  # the longest duration, such as a delay
MAX_TIME_MS = 1 << 50
MAX_BATCH = 500  # tasks, settlements or ids in one request
MAX_ERROR_CHARS = 2_048
MAX_TRACEBACK_BYTES = 8_192
MAX_CURSOR_CHARS = 300
DEFAULT_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES = 1 << 20, 16 << 20  # the longest payload: a server's setting, and its maximum
MAX_INLINE_BYTES = 1 << 16  # of a payload inside a frame; a longer one follows the frame


class Check(Protocol):
    """Returns a value of a field. Raises: BadRequest, naming the field, unless it is a text as it must be."""

    def __call__(self, value: object, field: str = ...) -> str: ...


def matching(pattern: re.Pattern[str], words: str, default: str = "id", *, is_secret: bool = False) -> Check:
    """Make the check of texts that match a pattern, as `words` say; errors do not show a secret one."""

    def check(value: object, field: str = default) -> str:
        if isinstance(value, str) and pattern.match(value):
            return value
        raise BadRequest(f"{field} must be {words}" + ("" if is_secret else f", not {value!r:.80}"), field=field)

    return check


_ID_CHARS = "characters of A-Z, a-z, 0-9, '-', '_'"
check_name = matching(
    NAME_PATTERN, "1 to 63 characters of a-z, 0-9, '-', '_' and begin with a letter or digit", "queue"
)
check_tenant = matching(TENANT_PATTERN, "1 to 128 characters of A-Z, a-z, 0-9, '.', '_', '-', '@', '+'", "tenant")
check_task_id = matching(TASK_ID_PATTERN, f"1 to 64 {_ID_CHARS}")
check_known_id = matching(KNOWN_ID_PATTERN, f"1 to 64 {_ID_CHARS}")  # of a task that may be a copy of another
check_full_id = matching(FULL_ID_PATTERN, "a full id, <tenant>/<id>")
_check_batch = matching(BATCH_ID_PATTERN, f"1 to 40 {_ID_CHARS}")


def check_chosen(id: str, field: str = "id") -> str:
    """Return an id, or a name that becomes part of ids, unless only workers give such ids. Raises: BadRequest."""
    if f"{id}-".startswith(DERIVED) or COPY_MARK in id:  # these are remembered for longer
        raise BadRequest(
            f"{field} must not be {DERIVED[:-1]!r}, begin with {DERIVED!r} or have {COPY_MARK!r}: "
            "such ids are for workers",
            field=field,
        )
    return id


def check_batch_id(value: object, field: str = "id") -> str:
    """Return the batch's id if it leaves room for what its callback tasks' ids end in. Raises: BadRequest."""
    return check_chosen(_check_batch(value, field), field)


def full_id(tenant: str, id: str) -> str:
    """Return the id that a task has in its queue: tenants choose ids without knowing of each other."""
    return f"{tenant}/{id}"


def bare_id(id: str) -> str:
    """Return the id that the tenant chose."""
    return id.rpartition("/")[2]


def owner_of(id: str) -> str:
    """Return the tenant in a full id; empty for a bare one."""
    return id.rpartition("/")[0]


def check_any_id(value: object, field: str = "id") -> str:
    """Return the id of a task, bare or full. Raises: BadRequest."""
    return check_full_id(value, field) if "/" in str(value) else check_known_id(value, field)


def check_known_batch(value: object, field: str = "id") -> str:
    """Return the id of a batch, bare or full. Raises: BadRequest."""
    return check_full_id(value, field) if "/" in str(value) else check_batch_id(value, field)


def check_weight(value: object, field: str = "weight") -> float:
    """Return a weight, checked. Raises: BadRequest for 0, negative, not finite or huge ones."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if value == 0:
            raise BadRequest(f"{field} must not be 0; pause instead", field=field)
        if MIN_WEIGHT <= value <= MAX_WEIGHT:
            return float(value)
    raise BadRequest(f"{field} must be a number from {MIN_WEIGHT} to {MAX_WEIGHT:g}, not {value!r:.80}", field=field)


def check_int(value: object, field: str, minimum: int, maximum: int) -> int:
    """Return a whole number within its range. Raises: BadRequest."""
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
        return value
    raise BadRequest(f"{field} must be a whole number from {minimum} to {maximum}, not {value!r:.80}", field=field)


def check_flag(value: object, field: str) -> bool:
    """Return a flag, checked. Raises: BadRequest."""
    if isinstance(value, bool):
        return value
    raise BadRequest(f"{field} must be true or false, not {value!r:.80}", field=field)
