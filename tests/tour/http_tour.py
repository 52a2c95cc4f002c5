"""The tour in eight steps over HTTP, with nothing but the standard library."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from typing import Any

URL = os.environ["FAIRQ_HTTP_URL"]


def ask(method: str, path: str, body: Any = None, token: str = os.environ["FAIRQ_TOKEN"]) -> Any:
    """Make a request; returns what the answer says."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{URL}/v1/queues/tour/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def enqueue(**task: Any) -> Any:
    """Enqueue one task."""
    return ask("POST", "tasks", task)


def result(id: str) -> Any:
    """Wait for a task's end; returns its result, or None."""
    return ask("GET", f"tasks/{id}?wait=30").get("result")


task = enqueue(payload={"add": [1, 2]}, id="first")
again = enqueue(payload={"add": [1, 2]}, id="first")
print("enqueue:", task["id"], again["outcome"] == "duplicate")

rows = [{"payload": number, "id": id, "tenant": tenant} for number, id, tenant in ((1, "a", "x"), (2, "b", "y"))]
tasks = ask("POST", "tasks", {"tasks": [*rows, {"payload": 3, "id": "c", "tenant": "x"}]}, "dev-producer")["tasks"]
print("many tenants:", *(each["id"] for each in tasks))

began = time.time()
task = enqueue(payload={"ask": "time"}, delay=0.5, result_ttl=60)
print("delay:", result(task["id"]) - began >= 0.5)

task = enqueue(payload={"add": [20, 22]}, result_ttl=60)
print("result:", result(task["id"]))

ask("POST", "batches", {"id": "report", "max_running": 2})
ask("POST", "tasks", {"tasks": [{"payload": number, "batch": "report"} for number in (1, 2, 3)]})
ask("POST", "batches/report/close")
print("batch:", ask("GET", "batches/report?wait=30")["done"])

nightly = {"payload": {"add": []}, "cron": "0 3 * * *", "zone": "Europe/Copenhagen"}
fires = ask("PUT", "schedules/nightly", nightly)["fires_at_ms"]
print("schedule:", len(fires), ask("DELETE", "schedules/nightly")["previous"])

task = enqueue(payload={"refuse": "once"}, id="odd", result_ttl=60)
if ask("GET", "tasks/odd?wait=30")["state"] == "dead":
    letters = ask("GET", "dead")["dead"]
    print("dead letter:", [(letter["id"], letter["reason"], letter["error"]) for letter in letters])
    print("replay:", *ask("POST", "dead/replay", {"ids": ["odd"]})["outcomes"], result("odd"))
