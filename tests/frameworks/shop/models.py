"""The shop's table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """An order of a customer; `done` counts how often its task was carried out."""

    number = models.CharField(max_length=40, primary_key=True)
    done = models.IntegerField(default=0)
