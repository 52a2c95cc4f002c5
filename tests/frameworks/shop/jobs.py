"""The shop's handlers: `manage.py fairq_worker`."""

from __future__ import annotations

import time

from django.db import connection, transaction
from django.db.models import F

import fairq

from .models import Order

app = fairq.Worker()


@app.task("orders")
def carry_out(task: fairq.Task) -> int:
    """Carry an order out."""
    time.sleep(task.payload.get("seconds", 0))
    with transaction.atomic():
        return Order.objects.filter(number=task.payload["order"]).update(done=F("done") + 1)


@app.task("orders", name="async")
async def carry_out_async(task: fairq.Task) -> int:
    """Carry an order out."""
    return await Order.objects.filter(number=task.payload["order"]).aupdate(done=F("done") + 1)


@app.task("orders", name="careless")
def leave_open(task: fairq.Task) -> bool:
    """Begin a transaction, and end it only at the second attempt; returns whether one was open before."""
    was_open = connection.in_atomic_block
    block = transaction.atomic()
    block.__enter__()
    Order.objects.filter(number=task.payload["order"]).update(done=F("done") + 1)
    if task.attempt == 2:
        block.__exit__(None, None, None)
    return was_open


@app.task("orders", name="backend")
def backend(task: fairq.Task) -> int:
    """Tell which connection of Postgres this is."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])
