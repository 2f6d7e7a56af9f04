"""What the tasks of the chaos programs write: a sum that shows every run too many, and orders as a
shop has them."""

from __future__ import annotations

from django.db import models


class Counter(models.Model):
    """One number that every run of a task adds 1 to."""

    name = models.CharField(max_length=40, primary_key=True)
    value = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.value}"


class Order(models.Model):
    """What a checkout inserts in the transaction in which it enqueues."""

    number = models.IntegerField(unique=True)

    def __str__(self) -> str:
        return str(self.number)


class Effect(models.Model):
    """What one run of a task has written."""

    number = models.IntegerField(db_index=True)
    version = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.number}: {self.version}"
