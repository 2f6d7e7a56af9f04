"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The "Thirty Seconds" shop."""

    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"
