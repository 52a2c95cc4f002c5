"""Refusals in plain words: the function library's, and those that servers and the service in memory have in common."""

from __future__ import annotations

from fairq.errors import BadRequest, FairqError, Forbidden, QuotaExceeded, from_code

_MESSAGES = {
    "not_found": "there is no such {}",
    "batch_closed": "the {} takes no more tasks",
    "repairing": "the {} is being repaired; try again when that is done",
    "quota_exceeded": "the tenant has reached its limit {}",
    "quota_exceeded max_tenants": "the queue has as many tenants as its setting {} allows, and this would be a new one",
    "unmade": "the {} was not made",
    "not_found id": "the task calls back for no batch that is known",
    "forbidden lease": "this worker does not hold the {}",
    "stale_version": "another operator has changed it since it was read: read it again; its version is now {more}",
    "deleting": "the {} is being deleted",
}  # by code, or code and field


def refusal(text: str) -> FairqError | None:
    """Read `FAIRQ <code> <field> [<more>]`; None for any other text."""
    word, _, rest = text.partition(" ")
    if word != "FAIRQ":
        return None
    code, where, *more = rest.split(" ")
    message = _MESSAGES.get(f"{code} {where}", _MESSAGES.get(code, "invalid {}")).format(
        where, more=more[0] if more else ""
    )
    if code != QuotaExceeded.code or not (more and more[0].isdecimal()):
        return from_code(code, message, where)
    wait_ms = int(more[0])
    return from_code(code, f"{message}; try again in {wait_ms / 1000:g} s", where, wait_ms)


def partitions_without_reserve(field: str) -> BadRequest:
    """Make the refusal of a reserve for a queue with partitions."""
    return BadRequest("a queue with partitions has no reserve: set reserve to 0, or keep one partition", field=field)


def other_tenant() -> Forbidden:
    """Make the refusal of a tenant's token that names another tenant."""
    return Forbidden("tenant tokens may use their own tenant only", field="tenant")


def needless_tenant() -> Forbidden:
    """Make the refusal of a tenant's token that names the tenant of a task."""
    return Forbidden("only producers name the tenant of a task", field="tenant")


def missing_tenant() -> BadRequest:
    """Make the refusal of a producer's task without a tenant."""
    return BadRequest("tenant is missing: a producer names it, for all tasks or for each", field="tenant")


def missing_ids() -> BadRequest:
    """Make the refusal of a producer that asks for all batches."""
    return BadRequest("ids are required: producers may not list batches", field="ids")


def not_held(id: str, lease: int, field: str = "leases") -> Forbidden:
    """Make the refusal of what a handler asks for under a lease that its worker does not hold."""
    return Forbidden(f"this worker does not hold lease {lease} of task {id}", field=field)


def guaranteed_to_all() -> BadRequest:
    """Make the refusal of a guarantee for all tenants."""
    return BadRequest("running tasks are guaranteed to one tenant, not to all", field="guaranteed")
