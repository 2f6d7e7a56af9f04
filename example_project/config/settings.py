"""Settings of the example project. For a look at the queue, not for a server on the internet."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
#: What a demo leaves behind: its database, its mail and the address of its Redis. Fresh each time.
DEMO_DIR = Path(os.environ.get("SHOP_DEMO_DIR") or BASE_DIR.parent / ".delayq-demo")


def redis_url() -> str:
    """The environment's, else that of the embedded server of a running demo, else the usual one."""
    with suppress(FileNotFoundError):
        return os.environ.get("DELAYQ_REDIS_URL") or (DEMO_DIR / "redis.url").read_text().strip()
    return "redis://127.0.0.1:6379/0"


# The queue: the app below and this.
DELAYQ = {"REDIS": redis_url(), "PREFIX": "shop"}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_delayq",
    "shop",
]

# The shop's own: how long after the payment a silent customer gives five stars, and whom a payment
# is reported to.
SHOP_REVIEW_AFTER = timedelta(seconds=20)
SHOP_WEBHOOK_URL = os.environ.get("SHOP_WEBHOOK_URL", "")

DEBUG = True
SECRET_KEY = "only for the demo"
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]
ROOT_URLCONF = "config.urls"
MIDDLEWARE = [
    "shop.middleware.content_security_policy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DEMO_DIR / "db.sqlite3",
        # Web and worker write at the same time: wait for each other instead of failing, and do not
        # block readers.
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL",
        },
    }
}
EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
EMAIL_FILE_PATH = DEMO_DIR / "mail"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
