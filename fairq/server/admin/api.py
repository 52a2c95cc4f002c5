"""The operators' side over HTTP: health for managers of containers, metrics for Prometheus. Read only.

/livez and /readyz need no token; what is wrong is told to operators only. /metrics needs an operator's token unless the
listener is on a loopback address.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from fairq.errors import FairqError, Forbidden
from fairq.server.admin.health import Health
from fairq.server.admin.metrics import Metrics
from fairq.server.app import App
from fairq.server.http.problems import Problem, answer_of
from fairq.transport import bearer_token
from fairq.wire.terms import Role


def make_admin_api(app: App, health: Health, pages: Iterable[BaseRoute] = ()) -> ASGIApp:
    """Make the application; `pages`: the dashboard's."""
    metrics = Metrics(app, health)

    async def check_operator(headers: Headers) -> None:
        identity = await app.auth.identify(bearer_token(headers.raw))
        if identity.role is not Role.OPERATOR:
            raise Forbidden("only operators may ask for this")

    async def livez(_: Request) -> Response:
        return PlainTextResponse("live\n")

    async def readyz(request: Request) -> Response:
        found = await health.look()
        if "authorization" not in request.headers:
            return PlainTextResponse("not ready\n" if found.troubles else "ready\n", 503 if found.troubles else 200)
        await check_operator(request.headers)
        told = {"ready": not found.troubles, "troubles": found.troubles, "store_ms": round(found.store_s * 1000, 1)}
        return Response(orjson.dumps(told), 503 if found.troubles else 200, media_type="application/json")

    async def show_metrics(request: Request) -> Response:
        if not app.settings.is_admin_loopback:
            await check_operator(request.headers)
        return Response(await metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, FairqError):
            return answer_of(error)
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            return answer_of(
                Problem("method_not_allowed", "this path is read with GET", headers={"Allow": "GET, HEAD"})
            )
        return answer_of(Problem("not_found", f"there is no path {request.url.path!r:.80}"))

    routes = [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", show_metrics), *pages]
    return Starlette(routes=routes, exception_handlers={FairqError: refused, HTTPException: refused})
