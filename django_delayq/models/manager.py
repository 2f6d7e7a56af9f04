"""The manager that reads the package's tables from the database that DELAYQ names."""

from __future__ import annotations

from typing import TypeVar

from django.db import models

from ..core.conf import get_settings

M = TypeVar("M", bound=models.Model)


class DelayQManager(models.Manager[M]):
    """Reads and writes the database that DELAYQ names, unless using() names another."""

    def get_queryset(self) -> models.QuerySet[M]:
        """All rows."""
        return super().get_queryset().using(self._db or get_settings().database)
