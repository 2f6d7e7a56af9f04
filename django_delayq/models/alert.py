"""Alerts that have begun or ended, and the messages about them."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class Alert(models.Model):
    """What a rule of ALERTS has seen in one topic, or in all. All workers see the same row, so one
    of them begins it and one ends it."""

    rule = models.CharField(max_length=100)
    """Name of the rule."""
    kind = models.CharField(max_length=20)
    topic = models.CharField(max_length=64, blank=True)
    """Empty for what is not about one topic."""
    open_key = models.CharField(max_length=170, unique=True, null=True)  # noqa: DJ001 - unique
    """Rule and topic until it has ended: there is one open alert of each."""
    value = models.FloatField()
    """The highest while it holds."""
    words = models.TextField()
    """What is wrong, in one line."""
    holds = models.BooleanField(default=True)
    """Whether it was so at the last look."""
    changed_at = models.DateTimeField()
    """Since when it holds, or does not."""
    seen_at = models.DateTimeField()
    """When somebody last looked."""
    began_at = models.DateTimeField(null=True)
    """When it had lasted long enough for a message to people; null: not yet."""
    ended_at = models.DateTimeField(null=True)

    objects = DelayQManager["Alert"]()

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.rule} {self.topic}".strip()


class AlertDelivery(models.Model):
    """A message to a mail address, a webhook or a function: an alert has begun, or has ended."""

    alert = models.ForeignKey(Alert, models.CASCADE, related_name="deliveries")
    target = models.CharField(max_length=500)
    event = models.CharField(max_length=5)
    """begun or ended."""
    attempts = models.PositiveIntegerField(default=0)
    next_try_at = models.DateTimeField(null=True, db_index=True)
    """When it is due; null: it was delivered, or given up. Who tries moves it first, so that nobody
    else does."""
    delivered_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)
    """Why the last try failed."""

    objects = DelayQManager["AlertDelivery"]()

    class Meta:
        verbose_name = _("message of an alert")
        verbose_name_plural = _("messages of alerts")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.alert} {self.event}: {self.target}"
