"""The table of answers, and what becomes of the task."""

from __future__ import annotations

import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairq
from fairq.webhook.answers import MAX_RETRY_AFTER_S, Answer, judge, retry_after
from tests.store.cases import case

NOW = 1_700_000_000.0

STATUSES = {
    "delivered": [200, 201, 202, 204, 206, 299],
    "rejected": [410],
    "retry": [101, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 405, 408, 409, 411, 413, 421, 422, 425, 429,
              451, 499, 500, 501, 502, 503, 504, 599, 999],
}  # fmt: skip


def test_the_status_decides() -> None:
    for outcome, status in [(name, each) for name, statuses in STATUSES.items() for each in statuses]:
        with case(outcome, status):
            verdict = judge(Answer(status), "hooks.example", NOW)
            assert (verdict.outcome, verdict.status, verdict.delay) == (outcome, status, None)
            assert verdict.reason == ("" if outcome == "delivered" else f"hooks.example answered {status}")


RETRY_AFTER = {
    "": None,
    "0": None,
    "1": 1.0,
    "120": 120.0,
    " 120 ": 120.0,
    "86400": 86_400.0,
    "86401": MAX_RETRY_AFTER_S,
    "9" * 5_000: MAX_RETRY_AFTER_S,
    "-1": None,
    "1.5": None,
    "+5": None,
    "²": None,
    "soon": None,
    formatdate(NOW + 90, usegmt=True): 90.0,  # Tue, 14 Nov 2023 22:14:50 GMT
    "Tuesday, 14-Nov-23 22:14:50 GMT": 90.0,
    "Tue Nov 14 22:14:50 2023": 90.0,
    "Tue, 14 Nov 2023 23:14:50 +0100": 90.0,
    "Tue, 14 Nov 2023 22:14:50 -0000": 90.0,
    formatdate(NOW, usegmt=True): None,
    formatdate(NOW - 90, usegmt=True): None,
    "Fri, 31 Dec 9999 23:59:59 GMT": MAX_RETRY_AFTER_S,
    "Mon, 01 Jan 0001 00:00:00 GMT": None,
    "Tue, 99 Nov 2023 22:14:50 GMT": None,
    "Tue, 14 Nov 2023 22:14:50 +9999": None,
    "Tue, 14 Nov 99999999999 22:14:50 GMT": None,
}


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set this machine's clock to another zone than the one that dates without a zone are in."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_retry_after_is_honoured_within_bounds() -> None:
    for text, delay in RETRY_AFTER.items():
        for status in [302, 404, 429, 503]:
            with case(text, delay, status):
                answer = Answer(status, [(b"RETRY-after", text.encode("latin-1"))])
                assert judge(answer, "h", NOW).delay == delay


@given(st.text() | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{1,6} [0-9:]{1,9} [+-]?[0-9A-Z]{0,6}"))
def test_no_retry_after_does_harm(text: str) -> None:
    delay = retry_after(text, NOW)
    assert delay is None or 0 < delay <= MAX_RETRY_AFTER_S
    if delay is not None:
        fairq.Retry(delay=delay)  # takes it


BODIES: dict[str, tuple[str | None, bytes | None, Any]] = {
    "JSON": ("application/json", b'{"a":[1,2.5,null]}', {"a": [1, 2.5, None]}),
    "JSON with a charset": ("Application/JSON; charset=utf-8", b'"\xc3\xa9"', "é"),
    "a kind of JSON": ("application/problem+json", b"[]", []),
    "null": ("application/json", b"null", None),
    "no body": ("application/json", b"", None),
    "not JSON after all": ("application/json", b"{oops", "{oops"),
    "NaN": ("application/json", b"NaN", "NaN"),
    "too deep": ("application/json", b"[" * 5_000 + b"]" * 5_000, "[" * 5_000 + "]" * 5_000),
    "text": ("text/plain", b"ok", "ok"),
    "text that looks like JSON": ("text/plain", b"1", "1"),
    "no type": (None, b"ok", "ok"),
    "not UTF-8": ("application/octet-stream", b"\xff\x00", "�\x00"),
    "JSON that is not UTF-8": ("application/json", b'"\xff"', '"�"'),
    "too long": ("application/json", None, None),
}


def test_the_body_is_the_result() -> None:
    for name, (kind, body, result) in BODIES.items():
        with case(name):
            headers = [(b"content-type", kind.encode())] if kind else []
            assert judge(Answer(200, headers, body), "h", NOW).result == result
            for coding, unpacked in ((b"identity", result), (b"gzip", None)):
                assert judge(Answer(200, [*headers, (b"content-encoding", coding)], body), "h", NOW).result == unpacked
