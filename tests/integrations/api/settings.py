"""Settings of a web server with the API, in a process of its own."""

from __future__ import annotations

import os

SECRET_KEY = "tests"
DEBUG = False
USE_TZ = True
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["django_delayq"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware"]
ROOT_URLCONF = "tests.integrations.api.served_urls"
WSGI_APPLICATION = "tests.integrations.api.wsgi.application"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["DELAYQ_API_SQLITE"],
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = {"REDIS": os.environ["DELAYQ_API_REDIS"], "API_TOPICS": ["*"]}
