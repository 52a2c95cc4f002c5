"""Tasks of a Celery project, as they were with another broker; only the broker is fairq."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from celery.signals import after_setup_logger
from celery.worker.request import Request

RETRY_S = 0.5  # Celery writes that a task retries after it has sent it again, and so over a result that came sooner

if transport := os.environ.get("SHOP_TRANSPORT"):
    app = Celery("shop", broker_transport=transport)
else:
    import fairq.celery  # noqa: F401  (it registers fairq://)

    app = Celery("shop")
app.conf.update(
    broker_url=os.environ["SHOP_BROKER"],
    result_backend=os.environ["SHOP_RESULTS"],
    accept_content=["json", "pickle"],
    task_acks_late=True,
    task_routes={"shop.mail": {"queue": "emails"}},
    worker_prefetch_multiplier=1,
)


@after_setup_logger.connect
def say_less(**_: Any) -> None:
    """Log no line for each task: a test does not read them all, and a full pipe would stop the worker."""
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)


@app.task(bind=True, name="shop.seen")
def seen(self: Any) -> dict[str, Any]:
    """Return what a task sees of its message."""
    request = self.request
    return {
        "tenant": request.get("tenant"),
        "retries": request.retries,
        "redelivered": request.delivery_info["redelivered"],
        "eta": request.eta,
    }


@app.task(name="shop.mail")
def mail(to: str) -> str:
    """Return something, from a queue of its own."""
    return f"sent to {to}"


@app.task(name="shop.size")
def size(data: bytes) -> int:
    """Return the length of data that is no text."""
    return len(data)


@app.task(name="shop.add")
def add(*numbers: int) -> int:
    """Add numbers."""
    return sum(numbers)


@app.task(name="shop.total")
def total(numbers: list[int]) -> int:
    """Add a list of numbers."""
    return sum(numbers)


@app.task(bind=True, name="shop.unsure", autoretry_for=(ValueError,), default_retry_delay=RETRY_S, max_retries=3)
def unsure(self: Any) -> list[Any]:
    """Succeed at the third run."""
    if self.request.retries < 2:
        raise ValueError("not yet")
    return [self.request.retries, self.request.get("tenant")]


@app.task(bind=True, name="shop.replaced")
def replaced(self: Any) -> None:
    """Let another task, under the same id, give the result."""
    raise self.replace(add.si(3, 4))


@app.task(bind=True, name="shop.replaced_by_chain", max_retries=1, default_retry_delay=RETRY_S)
def replaced_by_chain(self: Any) -> None:
    """Retry once, then let a chain give the result, whose last task retries too under this task's id."""
    if not self.request.retries:
        raise self.retry()
    raise self.replace(add.si(3, 4) | unsure.si())


class Heard(Request):
    """A request that says when the worker's main process has heard that its task has begun."""

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        """Say so."""
        super().on_accepted(pid, time_accepted)
        print("heard of a start", flush=True)


@app.task(bind=True, name="shop.until", acks_late=True, Request=Heard)
def until(self: Any, started: str, stop: str) -> str:
    """Note a start in a file, and run until another file exists."""
    with Path(started).open("a") as file:
        file.write(f"{self.request.id}\n")
    while not Path(stop).exists():
        time.sleep(0.02)
    return str(self.request.hostname)


app.task(bind=True, name="shop.until_early", acks_late=False)(until.run.__func__)


@app.task(bind=True, name="shop.work", ignore_result=True)
def work(self: Any, record: str, seconds: float) -> None:
    """Note the tenant and the task, and work for a while."""
    line = f"{self.request.tenant} {self.request.id}\n"
    descriptor = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())  # in one piece, also beside other processes
    os.close(descriptor)
    time.sleep(seconds)


@app.task(bind=True, name="shop.refused")
def refused(self: Any, marks: str) -> int:
    """Give itself back until it has been here three times."""
    from celery.exceptions import Reject

    with Path(marks).open("a+") as file:
        file.write("x")
        file.seek(0)
        times = len(file.read())
    if times < 3:
        raise Reject("not yet", requeue=True)
    return times


@app.task(name="shop.marked")
def marked(marks: str) -> None:
    """Make a mark in a file."""
    with Path(marks).open("a") as file:
        file.write("x")


@app.task(name="shop.never")
def never() -> None:
    """Make itself a dead letter."""
    from celery.exceptions import Reject

    raise Reject("never", requeue=False)
