"""Tasks as a Celery user has them; fairq_after.py has the same ones."""

from __future__ import annotations

from typing import Any

from celery import Celery, chain

app = Celery("shop", broker="memory://", backend="cache+memory://")


@app.task(bind=True, max_retries=5)
def charge(self: Any, order: str, cents: int) -> dict[str, Any]:
    """Charge a card; a bank that is busy is tried again."""
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return {"order": order, "cents": cents}


@app.task
def receipt(charged: dict[str, Any]) -> str:
    """Write the receipt of a charge."""
    return f"{charged['order']}: {charged['cents'] / 100:.2f}"


def buy(order: str, cents: int) -> Any:
    """Charge, and then write the receipt."""
    return chain(charge.s(order, cents), receipt.s()).apply_async(task_id=order)
