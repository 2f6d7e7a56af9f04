"""Settings of the test suite. The example project's shop is part of it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "example_project"))

from config.settings import MIDDLEWARE, SHOP_REVIEW_AFTER, SHOP_WEBHOOK_URL, TEMPLATES  # noqa: F401

from tests.databases import configured

SECRET_KEY = "tests"
# DELAYQ_TEST_USE_TZ=0: a project whose instants are naive.
USE_TZ = os.environ.get("DELAYQ_TEST_USE_TZ", "1") == "1"
TIME_ZONE = "UTC"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_delayq",
    "shop",
    "tests.app",
]
ROOT_URLCONF = "config.urls"
STATIC_URL = "static/"
DATABASES = {
    "default": configured(
        otherwise={
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": ":memory:",
            # A file: threads that share a database in memory do not wait for each other's locks but
            # fail.
            "TEST": {"NAME": Path(tempfile.gettempdir(), f"delayq-tests-{os.getpid()}.sqlite3")},
            "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        }
    ),
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
DELAYQ = {"REDIS": os.environ.get("DELAYQ_TEST_REDIS", "redis://127.0.0.1:1/0")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
