"""A Flask application that enqueues: one client for the process, which its threads share and its forks open anew."""

from __future__ import annotations

from typing import Any

from flask import Flask

import fairq
import fairq.sync

app = Flask(__name__)
queue = fairq.sync.open_client()  # connects at the first call; FAIRQ_URL and FAIRQ_TOKEN say where


@app.post("/orders/<order>")
def order(order: str) -> tuple[dict[str, Any], int]:
    """Take an order; the same order twice is one task."""
    task = queue.enqueue("orders", {"order": order}, id=order)
    return {"task": task.id, "again": task.is_duplicate}, 202


@app.errorhandler(fairq.QuotaExceeded)
def full(error: fairq.QuotaExceeded) -> tuple[str, int, dict[str, str]]:
    """Send customers who have too much in the queue away for a while."""
    return error.message, 429, {"Retry-After": str(-(-(error.retry_in_ms or 1000) // 1000))}
