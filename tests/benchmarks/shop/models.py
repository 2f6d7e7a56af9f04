"""What the workload `orders` changes."""

from __future__ import annotations

from django.db import models


class BenchOrder(models.Model):
    """An order that waits for its payment."""

    state = models.CharField(max_length=10, default="pending")

    def __str__(self) -> str:
        return f"order {self.pk}: {self.state}"
