"""A FastAPI application that enqueues: one client for the application's life, opened in its event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request

import fairq


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, fairq.Client]]:
    """Keep a client; URL and token are those of FAIRQ_URL and FAIRQ_TOKEN."""
    async with fairq.open_client() as client:
        yield {"queue": client}


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{order}", status_code=202)
async def order(order: str, request: Request) -> dict[str, str]:
    """Take an order; the same order twice is one task."""
    task = await request.state.queue.enqueue("orders", {"order": order}, id=order, result_ttl=60)
    return {"task": task.id}


@app.get("/orders/{order}")
async def outcome(order: str, request: Request) -> dict[str, str]:
    """Tell how far an order is."""
    (state,) = await request.state.queue.tasks("orders", [order])
    return {"state": state.state}
