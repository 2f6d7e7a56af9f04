"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _


class DelayQConfig(AppConfig):
    """Finds the tasks of every installed app. No I/O."""

    name = "django_delayq"
    label = "django_delayq"
    verbose_name = _("Delay queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django once all apps are loaded."""
        from . import checks  # noqa: F401 - registers the system checks
        from .core import log

        log.connect_receivers()
        autodiscover_modules("tasks")
        if (getattr(settings, "DELAYQ", None) or {}).get("EVENT_STREAM"):
            from .integrations.event_stream import writer

            writer.connect()
        backends = getattr(settings, "TASKS", None) or {}
        if any("django_delayq" in str(params) for params in backends.values()):
            from .integrations.django_tasks import make_known

            make_known()
