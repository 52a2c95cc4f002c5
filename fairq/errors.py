"""All errors of fairq, each with one stable code that the wire, the CLI and the SDK share.

FairqError
├── Retryable: nothing was wrong with the request; send the same again
│   ├── Unavailable, OutcomeUnknown, Draining
│   └── TooMany, Repairing
├── of the request: BadFrame, BadRequest, UnknownVerb, TooLarge, NotFound
├── of the token: Forbidden, Unauthorized
│                            └── TokenExpired
├── of the queue's state: QuotaExceeded, BatchClosed, NotEmpty, StaleVersion, Deleting, TooOld, StoreFull
├── of some tenants of a producer's call: TenantsRefused, which has an error for each
├── of what a call waits for: NotYet, TaskFailed, NoResult
└── of the process or its connection: Closed, Superseded, SettingsError, StoreRefused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MAX_NAMED = 5  # tenants in a message


class Portable(Exception):
    """An exception that can be pickled and copied without calling its constructor."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Let pickle and copy make it anew from its arguments and attributes, as BaseException keeps them."""
        return _made, (type(self), *self.args), self.__dict__


def _made(kind: type[Portable], *args: Any) -> Portable:
    return kind.__new__(kind, *args)


class FairqError(Portable):
    """An expected refusal or failure; `code` is stable, `field` names the invalid part of the input, if any.

    `retry_in_ms`: how long to wait before trying again, if known.
    """

    code = "internal"
    ref: int | None = None  # number of the request it answers, if the frame had one

    def __init__(self, message: str, *, field: str | None = None, retry_in_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_in_ms = retry_in_ms


class Retryable(FairqError):
    """Nothing was wrong with the request: send the same again, after `retry_in_ms` if that is known."""


class Unavailable(Retryable):
    """The store or server cannot be reached, and nothing was done; safe to try again."""

    code = "unavailable"


class OutcomeUnknown(Retryable):
    """The connection was lost after sending: the request may have been done. Try again with the same ids."""

    code = "outcome_unknown"


class Draining(Retryable):
    """The server or connection is stopping and accepts no new work."""

    code = "draining"


class TooMany(Retryable):
    """More requests or connections at once than the server accepts; try again later."""

    code = "too_many"


class Repairing(Retryable):
    """The queue is being repaired: nothing was done; safe to try again."""

    code = "repairing"


class BadFrame(FairqError):
    """A frame that is not one JSON object of the protocol."""

    code = "bad_frame"


class BadRequest(FairqError):
    """A value that breaks a rule; `field` names it."""

    code = "bad_request"


class UnknownVerb(FairqError):
    """A frame type that is not in the protocol."""

    code = "unknown_verb"


class TooLarge(FairqError):
    """A payload, batch or frame over its limit."""

    code = "too_large"


class NotFound(FairqError):
    """The thing named does not exist."""

    code = "not_found"


class Forbidden(FairqError):
    """The token does not allow this request."""

    code = "forbidden"


class Unauthorized(FairqError):
    """The token is missing, unknown or revoked, or it has expired."""

    code = "unauthorized"


class TokenExpired(Unauthorized):
    """The token has expired: an operator must create another."""

    code = "token_expired"


class QuotaExceeded(FairqError):
    """The tenant has reached a limit; `field` names it, `retry_in_ms` is when there may be room, if known."""

    code = "quota_exceeded"


class BatchClosed(FairqError):
    """The batch accepts no more tasks: it is closed or cancelled."""

    code = "batch_closed"


class NotEmpty(FairqError):
    """The queue is not empty; the message lists what it holds."""

    code = "not_empty"


class StaleVersion(FairqError):
    """Another operator has changed it since it was read; the message has the current version. Nothing was done."""

    code = "stale_version"


class Deleting(FairqError):
    """The queue is being deleted, and accepts nothing until the deletion is done."""

    code = "deleting"


class TooOld(FairqError):
    """The feed no longer keeps the events after this id; the message names the oldest one kept."""

    code = "too_old"


class StoreFull(FairqError):
    """The store has no room for new tasks; claims and settlements still work."""

    code = "store_full"


class TenantsRefused(FairqError):
    """Some tenants of a producer's call were refused; the tasks of the others are enqueued.

    `refusals` says why, by tenant. `taken` has the enqueued task for each payload, or None.
    """

    code = "tenants_refused"

    def __init__(self, refusals: Mapping[str, FairqError], taken: Sequence[Any]) -> None:
        named = ", ".join(f"{tenant} ({error.code})" for tenant, error in [*refusals.items()][:_MAX_NAMED])
        super().__init__(f"tenants were refused, {len(refusals)} in all: {named}")
        self.refusals = refusals
        self.taken = taken


class NotYet(FairqError):
    """The awaited event has not happened in time."""

    code = "not_yet"


class TaskFailed(FairqError):
    """The task ended without a result: it is a dead letter (the message says why), or was cancelled."""

    code = "task_failed"


class NoResult(FairqError):
    """The task's result was not kept, or has expired: enqueue it with `result_ttl`.

    With `field` `stored_bytes` it was dropped: that limit of its tenant left no room for it.
    """

    code = "no_result"


class Closed(FairqError):
    """The client was closed while the call was waiting."""

    code = "closed"


class Superseded(FairqError):
    """A newer worker has attached under this name."""

    code = "superseded"


class SettingsError(FairqError):
    """A setting that is missing, unreadable or out of range; `field` is its name."""

    code = "bad_setting"


class StoreRefused(FairqError):
    """The store answered with an error that is not fairq's."""

    code = "store_refused"


def _by_code(kind: type[FairqError]) -> dict[str, type[FairqError]]:
    found = {kind.code: kind} if "code" in vars(kind) else {}
    for narrower in kind.__subclasses__():
        found |= _by_code(narrower)
    return found


BY_CODE = {code: kind for code, kind in _by_code(FairqError).items() if kind is not FairqError}


def from_code(code: str, message: str, field: str | None = None, retry_in_ms: int | None = None) -> FairqError:
    """Build the error of a code; an unknown code gives a plain FairqError with that code."""
    error = BY_CODE.get(code, FairqError)(message, field=field)
    error.code, error.retry_in_ms = code, retry_in_ms
    return error
