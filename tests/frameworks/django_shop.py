"""A Django project in one file: what a transaction enqueues is sent when it has been committed, and only then."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import django
from django.conf import settings
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

import fairq.sync

DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SHOP_DATABASE", ":memory:")}
settings.configure(DATABASES={"default": DATABASE}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], USE_TZ=True)
django.setup()

queue = fairq.sync.open_client()  # connects at the first call; FAIRQ_URL and FAIRQ_TOKEN say where


class Order(models.Model):
    """An order of a customer."""

    number = models.CharField(max_length=40, primary_key=True)

    class Meta:
        app_label = "shop"


def order(request: HttpRequest, number: str) -> JsonResponse:
    """Take an order. The task's id is the order's: if the commit's task is sent again, it is still one task."""
    with transaction.atomic():
        Order.objects.create(number=number)
        transaction.on_commit(partial(queue.enqueue, "orders", {"order": number}, id=number))
        if number == "refused":
            raise ValueError("the card was refused")  # nothing is stored, and nothing enqueued
    return JsonResponse({"order": number}, status=202)


urlpatterns: list[Any] = [path("orders/<str:number>", order)]


def create_tables() -> None:
    """Do what migrations do in a larger project."""
    with connection.schema_editor() as editor:
        editor.create_model(Order)
