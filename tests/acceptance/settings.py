"""Settings of the worker processes. What differs from test to test comes through the
environment."""

from __future__ import annotations

import json
import os

from tests.databases import configured

DEBUG = os.environ.get("DELAYQ_TEST_DEBUG") == "1"
SECRET_KEY = "acceptance"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django_delayq",
    "tests.acceptance",
]
DATABASES = {
    "default": configured(otherwise={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {
    "REDIS": os.environ.get("DELAYQ_TEST_REDIS", "redis://127.0.0.1:1/0"),
    "PREFIX": os.environ.get("DELAYQ_TEST_PREFIX", "acceptance"),
    **json.loads(os.environ.get("DELAYQ_TEST_SETTINGS", "{}")),
}
