"""The operators' side over HTTP: health for managers of containers, metrics for Prometheus, and paths for all frames.

/livez and /readyz need no token; what is wrong is told to operators only. /metrics needs an operator's token unless the
listener is on a loopback address.
"""

from __future__ import annotations

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fairq.errors import FairqError
from fairq.server.admin.document import make_document
from fairq.server.admin.health import Health
from fairq.server.admin.metrics import Metrics
from fairq.server.admin.operators import Operators
from fairq.server.admin.pace import Pace
from fairq.server.admin.routes import make_routes
from fairq.server.app import App
from fairq.server.http.api import methods_of
from fairq.server.http.guard import Guard
from fairq.server.http.problems import Problem, answer_of
from fairq.server.http.traffic import Places
from fairq.transport import bearer_token

DOCUMENT = "/api/openapi.json"
MAX_REQUESTS, MAX_TOKEN_REQUESTS = 200, 50  # under way at once: in all, of one token
MAX_WAITS, MAX_TOKEN_WAITS = 100, 25  # of these, those that wait


def make_admin_api(app: App, operators: Operators) -> ASGIApp:
    """Make the application."""
    health = Health(app)
    metrics = Metrics(app, health)

    async def check_operator(request: Request) -> None:
        address = request.client.host if request.client else "unknown"
        await operators.identify(bearer_token(request.headers.raw), address)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("live\n")

    async def readyz(request: Request) -> Response:
        found = await health.look()
        if "authorization" not in request.headers:
            return PlainTextResponse("not ready\n" if found.troubles else "ready\n", 503 if found.troubles else 200)
        await check_operator(request)
        told = {"ready": not found.troubles, "troubles": found.troubles, "store_ms": round(found.store_s * 1000, 1)}
        return Response(orjson.dumps(told), 503 if found.troubles else 200, media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        if not app.settings.is_admin_loopback:
            await check_operator(request)
        return Response(await metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, FairqError):
            return answer_of(error)
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = ", ".join(sorted(methods_of(request)))
            message = f"{request.method} is not a method of this path: {allowed}"
            return answer_of(Problem("method_not_allowed", message, headers={"Allow": allowed}))
        return answer_of(Problem("not_found", f"there is no path {request.url.path!r:.80}; see /api/openapi.json"))

    async def document(_: Request) -> Response:
        return Response(orjson.dumps(make_document()), media_type="application/json")

    api = Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/metrics", show_metrics),
            Route(DOCUMENT, document),
            *make_routes(),
        ],
        exception_handlers={FairqError: refused, HTTPException: refused},
    )
    api.router.redirect_slashes = False
    requests = Places("requests under way", MAX_REQUESTS, MAX_TOKEN_REQUESTS, MAX_TOKEN_REQUESTS)
    waits = Places("requests that wait", MAX_WAITS, MAX_TOKEN_WAITS, MAX_TOKEN_WAITS)
    guard = Guard(
        api, app, operators.callers, lambda path: path.startswith("/api/") and path != DOCUMENT, requests, waits
    )
    return Pace(guard)
