"""What becomes of a task, by what its receiver answered: the one table of outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Literal

import orjson
from attrs import frozen

from fairq.client.handlers import Reject, Retry

GONE = 410
MAX_RETRY_AFTER_S = 86_400.0


@frozen
class Answer:
    """What came back; a `body` that is None was too long to be taken in."""

    status: int
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes | None = b""

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver has taken the task over."""
        return 200 <= self.status < 300

    def header(self, name: bytes) -> str:
        """Return the first header of a name (in small letters), or nothing."""
        return next((value.decode("latin-1").strip() for key, value in self.headers if key.lower() == name), "")


@frozen
class Verdict:
    """What becomes of a task. `delay` None: the queue's backoff."""

    outcome: Literal["delivered", "retry", "rejected"]
    status: int | None = None
    reason: str = ""
    delay: float | None = None
    result: Any = None

    def handle_request(self) -> Any:
        """Return the result, or raise what a handler raises. Raises: Retry, Reject."""
        if self.outcome == "retry":
            raise Retry(self.reason, delay=self.delay)
        if self.outcome == "rejected":
            raise Reject(self.reason)
        return self.result


def judge(answer: Answer, host: str, now: float) -> Verdict:
    """Decide by an answer; `now` is the time of day that a date in it is compared with."""
    if answer.is_delivered:
        return Verdict("delivered", answer.status, result=result_in(answer))
    reason = f"{host} answered {answer.status}"
    if answer.status == GONE:
        return Verdict("rejected", answer.status, reason)
    return Verdict("retry", answer.status, reason, retry_after(answer.header(b"retry-after"), now))


def retry_after(text: str, now: float) -> float | None:
    """Read how long to wait, as seconds or as a date; None if it does not say, or says at once."""
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
    """Read a body: JSON as its value, other text as text; None if there is none, or one too long or compressed."""
    if not answer.body or answer.header(b"content-encoding") not in ("", "identity"):
        return None
    kind = answer.header(b"content-type").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            pass
    return answer.body.decode(errors="replace")
