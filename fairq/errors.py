"""What can go wrong, each with one stable code that the wire, the CLI and the SDK share."""

from __future__ import annotations


class FairqError(Exception):
    """An expected refusal or failure; `code` is stable, `field` names the part of the input at fault, if any.

    `retry_in_ms`: when it may be tried again, where that can be told.
    """

    code = "internal"
    ref: int | None = None  # the request it answers, where the wire knows

    def __init__(self, message: str, *, field: str | None = None, retry_in_ms: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_in_ms = retry_in_ms


class BadFrame(FairqError):
    """A frame that is not one JSON object of the protocol."""

    code = "bad_frame"


class BadRequest(FairqError):
    """A value that breaks a rule; `field` names it."""

    code = "bad_request"


class UnknownVerb(FairqError):
    """A frame type that the protocol does not have."""

    code = "unknown_verb"


class Unauthorized(FairqError):
    """No token, or one that is unknown, expired or revoked."""

    code = "unauthorized"


class Forbidden(FairqError):
    """The token's role may not do this."""

    code = "forbidden"


class NotFound(FairqError):
    """The thing named does not exist."""

    code = "not_found"


class TooLarge(FairqError):
    """A payload, batch or frame over its limit."""

    code = "too_large"


class TooMany(FairqError):
    """More requests or connections at once than the server takes; try again later."""

    code = "too_many"


class BatchClosed(FairqError):
    """The batch takes no more tasks: it was closed, or cancelled."""

    code = "batch_closed"


class QuotaExceeded(FairqError):
    """The tenant has too much already; `field` is the limit, `retry_in_ms` when there may be room, if that is known."""

    code = "quota_exceeded"


class NotEmpty(FairqError):
    """The queue still holds something; the message says what."""

    code = "not_empty"


class Deleting(FairqError):
    """The queue is being deleted, and takes nothing until that is done."""

    code = "deleting"


class Repairing(FairqError):
    """The queue is being repaired: nothing was done; safe to try again."""

    code = "repairing"


class TooOld(FairqError):
    """The feed no longer keeps what came after that event; the message says from where it goes on."""

    code = "too_old"


class StoreFull(FairqError):
    """The store has no room for new tasks; claims and settlements go on."""

    code = "store_full"


class Unavailable(FairqError):
    """The store or server could not be reached, and nothing was done; safe to try again."""

    code = "unavailable"


class OutcomeUnknown(FairqError):
    """The connection was lost after sending: it may have been done. Try again with the same ids."""

    code = "outcome_unknown"


class Draining(FairqError):
    """The server is stopping and takes no new work."""

    code = "draining"


class Superseded(FairqError):
    """Another worker has attached under this name, and it came later."""

    code = "superseded"


class Closed(FairqError):
    """The client was closed while the call was waiting."""

    code = "closed"


class SettingsError(FairqError):
    """A setting that is missing, unreadable or out of range; `field` is its name."""

    code = "bad_setting"


class StoreRefused(FairqError):
    """The store answered with an error of its own."""

    code = "store_refused"


class NotYet(FairqError):
    """What was waited for has not happened in time."""

    code = "not_yet"


class TaskFailed(FairqError):
    """The task has no result: it is a dead letter (the message says why), or was cancelled."""

    code = "task_failed"


class NoResult(FairqError):
    """The task's result is not kept, or no more: enqueue it with `result_ttl`."""

    code = "no_result"


BY_CODE: dict[str, type[FairqError]] = {
    cls.code: cls
    for cls in (
        BadFrame,
        BadRequest,
        UnknownVerb,
        Unauthorized,
        Forbidden,
        NotFound,
        TooLarge,
        TooMany,
        BatchClosed,
        QuotaExceeded,
        NotEmpty,
        Deleting,
        Repairing,
        TooOld,
        StoreFull,
        Unavailable,
        OutcomeUnknown,
        Draining,
        Superseded,
        Closed,
        SettingsError,
        StoreRefused,
        NotYet,
        TaskFailed,
        NoResult,
    )
}


def from_code(code: str, message: str, field: str | None = None, retry_in_ms: int | None = None) -> FairqError:
    """Build the error that a code stands for; an unknown code gives a plain FairqError that keeps it."""
    error = BY_CODE.get(code, FairqError)(message, field=field)
    error.code, error.retry_in_ms = code, retry_in_ms
    return error
