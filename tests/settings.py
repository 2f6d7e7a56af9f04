"""Settings of the test suite."""

from __future__ import annotations

import os

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_delayq", "tests"]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
DELAYQ = {"REDIS": os.environ.get("DELAYQ_TEST_REDIS", "redis://127.0.0.1:1/0")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
