"""The Django project of the other queues: the orders, and connections that are kept."""

from __future__ import annotations

import json
import os

SECRET_KEY = "benchmarks"
USE_TZ = True
INSTALLED_APPS = ["tests.benchmarks.shop"]
DATABASES = {"default": json.loads(os.environ["DELAYQ_BENCH_DATABASE"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
if os.environ.get("DELAYQ_BENCH_DJANGO_Q") == "1":
    INSTALLED_APPS += ["django.contrib.contenttypes", "django.contrib.auth", "django_q"]
    Q_CLUSTER = {
        "name": "bench", "redis": os.environ["DELAYQ_BENCH_REDIS"], "workers": 2, "timeout": 60,
        "retry": 120, "save_limit": -1, "scheduler": False, "log_level": "ERROR",
    }  # fmt: skip
