"""The API as one ASGI application: CORS, the guard, the paths, and the document that describes them."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp

from fairq.errors import FairqError
from fairq.server.app import App
from fairq.server.web.http.bodies import Gone
from fairq.server.web.http.connections import Callers
from fairq.server.web.http.guard import Guard
from fairq.server.web.http.problems import Problem, answer_of
from fairq.server.web.http.request_ids import failure_of
from fairq.server.web.http.routes import ROWS, make_routes
from fairq.server.web.http.workers import Workers

_PARAMETER = re.compile("{.*?}")
_HEADERS = ["Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "Last-Event-ID", "X-Request-Id"]


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request whose path or method is unknown, or that was refused, or in which the server failed."""
    if isinstance(error, FairqError):
        return answer_of(error)
    if isinstance(error, Gone):
        raise error  # to guard.py: nobody reads an answer
    if not isinstance(error, HTTPException):
        return answer_of(failure_of(request.scope))  # guard.py logs it
    if error.status_code != 405:
        return answer_of(Problem("not_found", f"there is no path {request.url.path!r:.80}; see /openapi.json"))
    allowed = {"Allow": ", ".join(sorted(methods_of(request)))}
    if request.method == "OPTIONS":
        return Response(None, 204, allowed)
    message = f"{request.method} is not a method of this path: {allowed['Allow']}"
    return answer_of(Problem("method_not_allowed", message, headers=allowed))


def methods_of(request: Request) -> set[str]:
    """Return the methods of a path; `dead/replay` is no dead letter."""
    found: dict[str, set[str]] = defaultdict(set)
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found[_PARAMETER.sub("", route.path)] |= route.methods
    return {"OPTIONS"} | found[max(found, key=len)]


@cache
def _document() -> bytes:
    from fairq.server.web.http.openapi import make_document

    return orjson.dumps(make_document())


def make_api(app: App, callers: Callers, workers: Workers) -> ASGIApp:
    """Make the application."""

    async def document(_: Request) -> Response:
        return Response(_document(), media_type="application/json")

    api = Starlette(
        routes=[*make_routes(workers), Route("/openapi.json", document)],
        exception_handlers={FairqError: _refused, HTTPException: _refused, Exception: _refused},
    )
    api.router.redirect_slashes = False
    guard = Guard(api, app, callers)
    origins = app.settings.http_cors_origins
    if not origins:
        return guard
    exposed = ["Location", "Retry-After", "X-Request-Id"]
    methods = sorted({row.method for row in ROWS})
    return CORSMiddleware(guard, origins, methods, _HEADERS, expose_headers=exposed)
