"""The table of the outbox."""

from __future__ import annotations

from django.db import migrations, models
from django.utils import timezone


class Migration(migrations.Migration):
    """Creates it."""

    initial = True
    dependencies: list[tuple[str, str]] = []
    operations = [
        migrations.CreateModel(
            name="OutboxTask",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=64)),
                ("task_id", models.CharField(max_length=129)),
                ("payload", models.TextField()),
                ("options", models.JSONField(default=dict)),
                ("send_at", models.DateTimeField(db_index=True, default=timezone.now)),
                ("refusals", models.PositiveIntegerField(default=0)),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={"db_table": "fairq_outbox"},
        ),
    ]
