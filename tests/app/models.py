"""A table for tasks to write to. No migrations: made with the test database."""

from __future__ import annotations

from django.db import models


class Counter(models.Model):
    """Counts what ran."""

    name = models.CharField(max_length=40, unique=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"
