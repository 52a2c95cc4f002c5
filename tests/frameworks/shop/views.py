"""The shop's page: what a transaction enqueues is sent when it has been committed, and only then."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from fairq.django import enqueue_by_outbox, enqueue_on_commit

from .models import Order


def order(request: HttpRequest, number: str) -> JsonResponse:
    """Take an order. The task's id is the order's: if it is sent again, it is still one task."""
    enqueue = enqueue_by_outbox if "outbox" in request.GET else enqueue_on_commit
    with transaction.atomic():
        Order.objects.create(number=number)
        enqueue("orders", {"order": number}, id=number)
        if number.startswith("refused"):
            raise ValueError("the card was refused")  # nothing is stored, and nothing enqueued
    return JsonResponse({"order": number}, status=202)


urlpatterns: list[Any] = [path("orders/<str:number>", order)]
