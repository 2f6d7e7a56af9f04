"""Settings of the benchmark worker and producer."""

from __future__ import annotations

import os

SECRET_KEY = "benchmarks"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = ["django_delayq", "tests.benchmarks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
DELAYQ = {
    "REDIS": os.environ["DELAYQ_BENCH_REDIS"],
    "TOPICS": {"bench": {"partitions": int(os.environ.get("DELAYQ_BENCH_PARTITIONS", "1"))}},
}
if "DELAYQ_BENCH_FINISHED_LIMIT" in os.environ:
    DELAYQ["FINISHED_LIMIT"] = int(os.environ["DELAYQ_BENCH_FINISHED_LIMIT"])
