"""Calls to the server, and the exchanges of frames that carry them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define

from fairq.errors import BadFrame, FairqError, OutcomeUnknown, Retryable, TooLarge, Unavailable, from_code
from fairq.model.tasks import NewTask
from fairq.wire.pauses import Key

REFUSED = "refused"  # the outcome of a task if its tenant was refused; the reply's `refusals` say why
FATAL = frozenset({"unauthorized", "forbidden", "superseded", "closed"})
_MAX_NAMED = 10  # tasks in a message


@define(eq=False)
class Call:
    """A request to the server; `wake` is called when it is done."""

    deadline: float
    wake: Callable[[], None] = lambda: None
    is_done: bool = False
    result: Any = None
    error: FairqError | None = None
    tasks: Sequence[NewTask] = ()  # of an enqueue; its result is an outcome for each, None until it comes
    missing: int = 0  # outcomes still to come
    under_way: int = 0  # frames without an answer
    in_doubt: bool = False  # a frame was lost or refused as outcome_unknown, or did only part of it; stays true
    last_refusal: FairqError | None = None

    def finish(self, result: Any = None, error: FairqError | None = None) -> None:
        """Settle the call, once."""
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error
            self.wake()

    def leave(self) -> None:
        """Abandon the call: its caller has gone; it may still be carried out."""

    def refused(self, error: FairqError) -> None:
        """Note that a frame of the call was refused for now; it will be sent again."""
        self.under_way -= 1
        if isinstance(error, Retryable):  # any other may be the fault of a call that shares the frame
            self.last_refusal = error
        self.in_doubt = self.in_doubt or error.code == OutcomeUnknown.code

    def lost(self) -> None:
        """Note that the answer to a frame of the call was lost; the frame will be sent again."""
        self.under_way -= 1
        self.in_doubt = True

    def give_up(self, trouble: str) -> None:
        """Fail at the deadline: OutcomeUnknown if it may have been done, else the last refusal or Unavailable."""
        if self.under_way or self.in_doubt:
            of = f" for {self._unanswered()}" if self.missing else ""
            self.finish(error=OutcomeUnknown(f"no answer in time{of}; the request may have been done"))
        else:
            why = f"no connection to the server in time; nothing was done ({trouble or 'no welcome'})"
            self.finish(error=self.last_refusal or Unavailable(why))

    def _unanswered(self) -> str:
        """Count and name the tasks of an enqueue that have no outcome yet."""
        ids = [task.id for task, outcome in zip(self.tasks, self.result, strict=True) if outcome is None]
        more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
        return f"{len(ids)} of {len(self.tasks)} tasks ({', '.join(ids[:_MAX_NAMED])}{more})"


class Exchange:
    """One frame under way, and how its answer is handled."""

    has_window = False  # a limited number of its type may be under way, and one that was refused is sent apart

    @property
    def is_due(self) -> bool:
        """True if the server answers at once."""
        return True

    @property
    def key(self) -> Key:
        """A refusal for now delays the other frames that have the same key."""
        return type(self).__name__, ""

    def answered(self, body: dict[str, Any], now: float) -> None:
        """Handle the reply. Raises: BadFrame, before anything is changed, if it does not fit the request."""

    def partly_answered(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """Handle part of the answer. Raises: BadFrame if the request has none."""
        raise BadFrame("invalid frame from the server: `ended` does not answer this request")

    def refused(self, error: FairqError, now: float) -> None:
        """Handle a refusal."""

    def lost(self) -> None:
        """Handle the end of the connection, without an answer: subclasses put back what the next one sends again."""

    def unsent(self, error: TooLarge, now: float) -> None:
        """Handle a frame that was too large to be sent."""
        self.refused(error, now)


def outcomes_of(body: Mapping[str, Any], name: str, count: int) -> list[str]:
    """Return the outcomes in a reply's body, one for each item of the request. Raises: BadFrame."""
    outcomes = body.get(name)
    if not isinstance(outcomes, list) or len(outcomes) != count:
        raise BadFrame(f"invalid reply: expected {count} {name}")
    return outcomes


def refusals_of(body: Mapping[str, Any]) -> dict[str, FairqError]:
    """Return why tasks of some tenants were refused, by tenant. Raises: BadFrame."""
    rows = body.get("refusals", {})
    if not isinstance(rows, dict):
        raise BadFrame("invalid reply: expected refusals by tenant")
    errors = {}
    for tenant, row in rows.items():
        try:
            message = f"tenant {tenant}: {row['message']}"
            errors[tenant] = from_code(row["code"], message, row.get("field"), row.get("retry_in_ms"))
        except (TypeError, KeyError):
            raise BadFrame("invalid reply: a refusal has code and message") from None
    return errors
