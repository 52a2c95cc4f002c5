"""The operators' side over HTTP: health for managers of containers, metrics for Prometheus, the control API, pages.

/livez and /readyz need no token; only operators can read the causes. /metrics needs an operator's token or a
viewer's unless its listener is on a loopback address, and asked by that: not by a proxy, nor by a name that DNS has
pointed here. /api is for both, too (routes.py); the pages are the dashboard's.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from fairq.server.engine.app import App
from fairq.server.engine.net.auth import Identity, bearer_token
from fairq.server.web.admin.health import Health
from fairq.server.web.admin.metrics import Metrics
from fairq.server.web.admin.operators import Operators
from fairq.server.web.admin.rate_limit import RateLimit
from fairq.server.web.admin.routes import ROWS
from fairq.server.web.admin.seal import Seal
from fairq.server.web.http.api import make_application
from fairq.server.web.http.guard import Guard
from fairq.server.web.http.listener import is_local
from fairq.server.web.http.problems import Problem, answer_of
from fairq.server.web.http.routes import routes_of
from fairq.server.web.http.schema import Schema
from fairq.server.web.http.traffic import Bound

DOCUMENT = "/api/openapi.json"
MAX_REQUESTS, MAX_TOKEN_REQUESTS = 200, 50  # under way at once: in all, of one token
MAX_WAITS, MAX_TOKEN_WAITS = 100, 25  # of these, those that wait


@cache
def make_document() -> Schema:
    """Make the document of the operators' paths."""
    from fairq.server.web.http.openapi import document_of, paths_of

    return document_of("fairq, for operators", paths_of(ROWS))


def make_admin_api(
    app: App, operators: Operators, health: Health, pages: Iterable[BaseRoute], *, has_metrics: bool
) -> ASGIApp:
    """Make the application; `pages`: the dashboard's; `has_metrics`: no other process shares its port."""

    async def livez(_: Request) -> Response:
        return PlainTextResponse("live\n")

    async def readyz(request: Request) -> Response:
        found = await health.look()
        if "authorization" not in request.headers:
            return PlainTextResponse("not ready\n" if found.troubles else "ready\n", 503 if found.troubles else 200)
        await _identify(operators, request)
        body = {"ready": not found.troubles, "troubles": found.troubles, "store_ms": round(found.store_s * 1000, 1)}
        return Response(orjson.dumps(body), 503 if found.troubles else 200, media_type="application/json")

    async def document(_: Request) -> Response:
        return Response(orjson.dumps(make_document()), media_type="application/json")

    routes = [
        Route("/livez", livez),
        Route("/readyz", readyz),
        _page_of(operators, Metrics(app, health), is_open=app.settings.is_admin_loopback)
        if has_metrics
        else Route("/metrics", _refuse_metrics),
        Route(DOCUMENT, document),
        *routes_of(ROWS),
        *pages,
    ]
    api = make_application(routes, DOCUMENT)
    requests = Bound("requests under way", MAX_REQUESTS, MAX_TOKEN_REQUESTS, MAX_TOKEN_REQUESTS)
    waits = Bound("requests that wait", MAX_WAITS, MAX_TOKEN_WAITS, MAX_TOKEN_WAITS)
    guard = Guard(api, app, operators, lambda path: path.startswith("/api/") and path != DOCUMENT, requests, waits)
    return Seal(RateLimit(guard))


def make_metrics_api(app: App, operators: Operators) -> ASGIApp:
    """Make the application of a listener that has nothing but /metrics."""
    page = _page_of(operators, Metrics(app, Health(app)), is_open=app.settings.is_metrics_loopback)
    return Seal(RateLimit(make_application([page], DOCUMENT)))


def _page_of(operators: Operators, metrics: Metrics, *, is_open: bool) -> Route:
    async def show_metrics(request: Request) -> Response:
        only = None
        if not (is_open and is_local(request.headers.get("host", ""))):
            only = (await _identify(operators, request)).queues
        return Response(await metrics.page(only), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return Route("/metrics", show_metrics)


async def _refuse_metrics(_: Request) -> Response:
    where = "each process of this server serves its metrics at a port of its own: see the setting metrics_port"
    return answer_of(Problem("not_found", where))


async def _identify(operators: Operators, request: Request) -> Identity:
    address = request.client.host if request.client else "unknown"
    return await operators.identify(bearer_token(request.headers.raw), address)
