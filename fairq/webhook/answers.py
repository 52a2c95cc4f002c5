"""Decides a task's outcome by its receiver's answer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson
from attrs import frozen

from fairq.client.task import Postpone, Reject, Retry

GONE = 410
MAX_RETRY_AFTER_S = 86_400.0


@frozen
class Answer:
    """A receiver's answer; `body` None means that it was too long to read."""

    status: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes | None = b""

    @property
    def is_delivered(self) -> bool:
        """True if the receiver has accepted the task."""
        return 200 <= self.status < 300

    def header(self, name: bytes) -> str:
        """Return the first header with this name (in lower case), or an empty text."""
        return next((value.decode("latin-1").strip() for key, value in self.headers if key.lower() == name), "")


@frozen
class Verdict:
    """The outcome of a task's delivery. `delay` (s) of a retry, None: the queue's backoff; or of what is postponed."""

    outcome: Literal["delivered", "retry", "postponed", "rejected"]
    status: int | None = None
    reason: str = ""
    delay: float | None = None
    result: Any = None

    def conclude(self) -> Any:
        """Return the result, or raise as a handler does. Raises: Retry, Postpone, Reject."""
        if self.outcome == "retry":
            raise Retry(self.reason, delay=self.delay)
        if self.outcome == "postponed":
            raise Postpone(self.reason, delay=self.delay or 0)
        if self.outcome == "rejected":
            raise Reject(self.reason)
        return self.result


def judge(answer: Answer, host: str, now: float) -> Verdict:
    """Return the verdict on an answer; `now` (Unix time, s) is compared with a date in Retry-After."""
    if answer.is_delivered:
        return Verdict("delivered", answer.status, result=result_in(answer))
    reason = f"{host} answered {answer.status}"
    if answer.status == GONE:
        return Verdict("rejected", answer.status, reason)
    return Verdict("retry", answer.status, reason, retry_after(answer.header(b"retry-after"), now))


def retry_after(text: str, now: float) -> float | None:
    """Return the seconds to wait, from seconds or a date; None if it is missing, invalid or not in the future."""
    if text.isascii() and text.isdigit():
        seconds = float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
        except (ValueError, OverflowError):
            return None
    return min(seconds, MAX_RETRY_AFTER_S) if seconds > 0 else None


def result_in(answer: Answer) -> Any:
    """Return a body's value: JSON as its value, other text as text; None if it is empty, too long or compressed."""
    if not answer.body or answer.header(b"content-encoding") not in ("", "identity"):
        return None
    kind = answer.header(b"content-type").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            pass
    return answer.body.decode(errors="replace")
