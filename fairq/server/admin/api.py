"""The operators' side over HTTP: health for managers of containers, metrics for Prometheus. Read only.

/livez and /readyz need no token; what is wrong is told to operators only. /metrics needs an operator's token unless the
listener is on a loopback address.
"""

from __future__ import annotations

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from fairq.errors import FairqError, Forbidden
from fairq.server.admin.health import Health
from fairq.server.admin.metrics import Metrics
from fairq.server.app import App
from fairq.server.http.problems import Problem, answer_of
from fairq.server.http.request_ids import failure_of
from fairq.transport import bearer_token
from fairq.wire.terms import Role


def make_admin_api(app: App) -> ASGIApp:
    """Make the application."""
    health = Health(app)
    metrics = Metrics(app, health)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("live\n")

    async def readyz(request: Request) -> Response:
        found = await health.look()
        if "authorization" not in request.headers:
            return PlainTextResponse("not ready\n" if found.troubles else "ready\n", 503 if found.troubles else 200)
        await _check_operator(app, request.headers)
        told = {"ready": not found.troubles, "troubles": found.troubles, "store_ms": round(found.store_s * 1000, 1)}
        return Response(orjson.dumps(told), 503 if found.troubles else 200, media_type="application/json")

    page = _page_of(app, metrics, is_open=app.settings.is_admin_loopback)
    return _application(Route("/livez", livez), Route("/readyz", readyz), page)


def make_metrics_api(app: App) -> ASGIApp:
    """Make the application of a listener that has nothing but /metrics."""
    return _application(_page_of(app, Metrics(app, Health(app)), is_open=app.settings.is_metrics_loopback))


def _application(*routes: Route) -> ASGIApp:
    refused = {FairqError: _refused, HTTPException: _refused, Exception: _refused}
    return Starlette(routes=routes, exception_handlers=refused)


def _page_of(app: App, metrics: Metrics, *, is_open: bool) -> Route:
    async def show_metrics(request: Request) -> Response:
        if not is_open:
            await _check_operator(app, request.headers)
        return Response(await metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Route("/metrics", show_metrics)


async def _check_operator(app: App, headers: Headers) -> None:
    identity = await app.auth.identify(bearer_token(headers.raw))
    if identity.role is not Role.OPERATOR:
        raise Forbidden("only operators may ask for this")


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, FairqError):
        return answer_of(error)
    if not isinstance(error, HTTPException):
        return answer_of(failure_of(request.scope))  # http/guard.py logs it
    if error.status_code == 405:
        return answer_of(Problem("method_not_allowed", "this path is read with GET", headers={"Allow": "GET, HEAD"}))
    return answer_of(Problem("not_found", f"there is no path {request.url.path!r:.80}"))
