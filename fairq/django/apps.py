"""The application, as Django finds it."""

from __future__ import annotations

from django.apps import AppConfig


class FairqConfig(AppConfig):
    """fairq: its table is fairq_outbox, its commands are fairq_worker and fairq_relay."""

    name = "fairq.django"
    label = "fairq"
    default_auto_field = "django.db.models.BigAutoField"
