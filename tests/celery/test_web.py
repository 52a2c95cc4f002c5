"""A middleware names the tenant of each request, as the guide has it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("celery")

import fairq.celery
from tests.celery.conftest import get

pytestmark = [pytest.mark.deep("frameworks"), pytest.mark.usefixtures("working")]


def test_fastapi(shop: Any) -> None:
    from fastapi import FastAPI, Request
    from fastapi.testclient import TestClient

    app = FastAPI()

    @app.middleware("http")
    async def name_tenant(request: Request, call_next: Any) -> Any:
        with fairq.celery.tenant(request.headers["x-tenant"]):
            return await call_next(request)

    @app.get("/thread")
    def in_a_thread() -> str:
        return str(shop.seen.delay().id)

    @app.get("/loop")
    async def in_the_loop() -> str:
        return str(shop.seen.delay().id)

    with TestClient(app) as client:
        for path in ("/thread", "/loop"):
            for tenant in ("ada", "bob"):
                id = client.get(path, headers={"x-tenant": tenant}).json()
                assert get(shop.app.AsyncResult(id))["tenant"] == tenant


def test_a_middleware_of_django_is_a_function_around_the_view(shop: Any) -> None:
    def view(request: str) -> Any:
        return shop.seen.delay()

    def middleware(request: str) -> Any:
        with fairq.celery.tenant(request):
            return view(request)

    assert [get(middleware(tenant))["tenant"] for tenant in ("ada", "bob")] == ["ada", "bob"]
