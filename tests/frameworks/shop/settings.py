"""The settings: SQLite at SHOP_DATABASE, or Postgres if that is the folder of its socket."""

from __future__ import annotations

import os
from pathlib import Path

PLACE = os.environ["SHOP_DATABASE"]

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.frameworks.shop.views"
INSTALLED_APPS = ["fairq.django", "tests.frameworks.shop"]
USE_TZ = True
POSTGRES = {"ENGINE": "django.db.backends.postgresql", "HOST": PLACE, "NAME": "postgres", "USER": "postgres"}
KEPT = {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}
SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": PLACE, "OPTIONS": {"timeout": 30}}
DATABASES = {"default": POSTGRES | KEPT if Path(PLACE).is_dir() else SQLITE}
FAIRQ = {"APP": "tests.frameworks.shop.jobs:app"}
