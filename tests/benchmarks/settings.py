"""Settings of the benchmark worker and producer."""

from __future__ import annotations

import os

from tests.databases import configured

SECRET_KEY = "benchmarks"
USE_TZ = True
DEBUG = False
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_delayq",
    "tests.benchmarks",
    *(["tests.benchmarks.shop"] if os.environ.get("DELAYQ_BENCH_SHOP") == "1" else []),
]
DATABASES = {
    "default": configured(
        otherwise={
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("DELAYQ_BENCH_SQLITE", ":memory:"),
        }
    )
}
# Those of startproject.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "tests.benchmarks.api_urls"
ALLOWED_HOSTS = ["localhost"]
if "sqlite3" in DATABASES["default"]["ENGINE"]:  # as docs/how-to/databases.md advises
    wal = {"init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"}
    DATABASES["default"] = {
        **DATABASES["default"],
        "OPTIONS": {**DATABASES["default"].get("OPTIONS", {}), **wal},
    }
if os.environ.get("DELAYQ_BENCH_SHOP") == "1":  # as docs/how-to/databases.md advises; the peers too
    DATABASES["default"] = {**DATABASES["default"], "CONN_MAX_AGE": 60}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {
    "REDIS": os.environ["DELAYQ_BENCH_REDIS"],
    "TOPICS": {
        "bench": {"partitions": int(os.environ.get("DELAYQ_BENCH_PARTITIONS", "1"))},
        "paced": {"rate": "100/s"},
        **{f"many.{n:04}": {} for n in range(int(os.environ.get("DELAYQ_BENCH_TOPICS", "0")))},
    },
    "METRICS": os.environ.get("DELAYQ_BENCH_METRICS") == "1",
    "METRICS_MAX_TOPICS": 2_000,
    "API_TOPICS": ["letters"],
    # As by default. Where no archiver runs beside the workers the finished stream grows, and must
    # not stop them.
    "ARCHIVE": os.environ.get("DELAYQ_BENCH_ARCHIVE", "all"),
    "FINISHED_LIMIT": 10_000_000,
    "ON_REDIS_ERROR": "raise",
    **(
        {"BODY_LIMIT": int(os.environ["DELAYQ_BENCH_BODY_LIMIT"]), "COMPRESS_ABOVE": 1024 * 1024}
        if "DELAYQ_BENCH_BODY_LIMIT" in os.environ
        else {}
    ),
}
