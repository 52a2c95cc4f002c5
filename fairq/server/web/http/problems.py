"""Errors as problem details (RFC 9457), and which status each code has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fairq.errors import FairqError
from fairq.server.web.http.fields import name_of
from fairq.server.web.http.request_ids import note_of

MEDIA_TYPE = "application/problem+json"
STATUS: dict[str, int] = {
    "bad_request": 400,
    "bad_frame": 400,
    "unauthorized": 401,
    "token_expired": 401,
    "forbidden": 403,
    "not_found": 404,
    "unknown_verb": 404,
    "method_not_allowed": 405,
    "not_in_time": 408,
    "batch_closed": 409,
    "not_empty": 409,
    "superseded": 409,
    "deleting": 409,
    "too_old": 410,
    "stale_version": 412,
    "too_large": 413,
    "wrong_type": 415,
    "not_here": 421,
    "head_too_large": 431,
    "too_many": 429,
    "quota_exceeded": 429,
    "internal": 500,
    "store_refused": 502,
    "unavailable": 503,
    "repairing": 503,
    "draining": 503,
    "outcome_unknown": 503,
    "wrong_version": 505,
    "store_full": 507,
}
_MS = re.compile(r"(?<=[a-z])_ms\b")  # HTTP's names of fields have no unit
_RETRIED = {"too_many", "unavailable", "repairing", "draining", "outcome_unknown", "store_full"}  # after a second, if
# no time is known


class Problem(FairqError):
    """An error that only HTTP has; `code` is one of STATUS."""

    def __init__(self, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.code, self.headers = code, headers or {}


class ProblemResponse(Response):
    """An error as an answer; it leaves its code in the request's note."""

    media_type = MEDIA_TYPE
    code = "internal"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if note := note_of(scope):
            note.code = self.code
        await super().__call__(scope, receive, send)


def body_of(error: FairqError) -> dict[str, Any]:
    """Describe an error: the members of a problem, and ours."""
    status = STATUS.get(error.code, 500)
    field, detail = error.field, error.message
    if field and not detail.startswith("unknown field"):  # that is a name the client has chosen
        field, detail = name_of(field), _MS.sub("", detail.replace("timeout_ms", name_of("timeout_ms")))
    more = {"code": error.code, "field": field, "retry_in_ms": error.retry_in_ms}
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return body | {name: value for name, value in more.items() if value is not None}


def answer_of(error: FairqError) -> Response:
    """Answer a request that is refused."""
    body = body_of(error)
    headers = dict(error.headers) if isinstance(error, Problem) else {}
    if body["status"] == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="fairq"'
    if error.retry_in_ms or error.code in _RETRIED:
        headers["Retry-After"] = str(max(1, -(-(error.retry_in_ms or 0) // 1000)))
    response = ProblemResponse(orjson.dumps(body), body["status"], headers)
    response.code = error.code
    return response
