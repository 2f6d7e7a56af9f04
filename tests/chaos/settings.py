"""Settings of the chaos programs and of their worker processes. Addresses come from the
environment."""

from __future__ import annotations

import json
import os

from tests.databases import configured

SECRET_KEY = "chaos"
USE_TZ = True
INSTALLED_APPS = ["django_delayq", "tests.chaos.apps.ChaosConfig"]
DATABASES = {
    "default": configured(otherwise={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"})
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DELAYQ = json.loads(os.environ.get("DELAYQ_CHAOS_SETTINGS", "{}"))
