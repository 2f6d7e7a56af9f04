"""Settings of the benchmark worker and producer."""

from __future__ import annotations

import os

SECRET_KEY = "benchmarks"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = ["django_delayq", "tests.benchmarks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DELAYQ = {"REDIS": os.environ["DELAYQ_BENCH_REDIS"], "TOPICS": {"bench": {}, "far": {}}}
