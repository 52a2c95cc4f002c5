"""The API as one ASGI application: CORS, the guard, the paths, and the document that describes them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp

from fairq.errors import FairqError
from fairq.server.engine.app import App
from fairq.server.web.http.bodies import Gone
from fairq.server.web.http.connections import Callers
from fairq.server.web.http.guard import HEADERS, Guard
from fairq.server.web.http.problems import Problem, answer_of
from fairq.server.web.http.request_ids import failure_of
from fairq.server.web.http.routes import ROWS, routes_of
from fairq.server.web.http.workers import Workers

DOCUMENT = "/openapi.json"
_PARAMETER = re.compile("{.*?}")


def make_application(routes: Iterable[BaseRoute], document: str, *, answers_options: bool = False) -> Starlette:
    """Make an application that answers unknown paths and methods, what is refused, and what the server fails at.

    `document`: the path of the one that describes it.
    """

    async def refuse(request: Request, error: Exception) -> Response:
        if isinstance(error, FairqError):
            return answer_of(error)
        if isinstance(error, Gone):
            raise error  # to guard.py: the client has gone
        if not isinstance(error, HTTPException):
            return answer_of(failure_of(request.scope))  # guard.py logs it
        if error.status_code != 405:
            return answer_of(Problem("not_found", f"there is no path {request.url.path!r:.80}; see {document}"))
        allowed = {"Allow": ", ".join(sorted(_methods_of(request)))}
        if request.method == "OPTIONS" and answers_options:
            return Response(None, 204, allowed)
        message = f"this path has no method {request.method}; it has {allowed['Allow']}"
        return answer_of(Problem("method_not_allowed", message, headers=allowed))

    refusals = {FairqError: refuse, HTTPException: refuse, Exception: refuse}
    api = Starlette(routes=list(routes), exception_handlers=refusals)
    api.router.redirect_slashes = False
    return api


def _methods_of(request: Request) -> set[str]:
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

    api = make_application([*routes_of(ROWS), Route(DOCUMENT, document)], DOCUMENT, answers_options=True)
    api.state.workers = workers
    guard = Guard(api, app, callers)
    origins = app.settings.http_cors_origins
    if not origins:
        return guard
    exposed = ["Location", "Retry-After", "X-Request-Id"]
    methods = sorted({row.method for row in ROWS})
    return CORSMiddleware(guard, origins, methods, HEADERS, expose_headers=exposed)
