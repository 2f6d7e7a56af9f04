"""Recurring tasks: how far their ticks are written, and which of them are paused."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class RecurringTask(models.Model):
    """How far the ticks of one task are written. The transaction that writes the messages of ticks
    also moves this row, so each tick has one message."""

    id = models.BigAutoField(primary_key=True)
    task = models.CharField(_("task"), max_length=200, unique=True)
    rule = models.CharField(_("rule"), max_length=300)
    """str() of the Rule by which the ticks are written. It changes when nobody has written by it
    for a while."""
    upto_ms = models.BigIntegerField(_("written up to"))
    """All ticks up to this instant are written. It moves every few seconds, also when no tick
    comes: that shows that somebody writes by this rule."""
    last_tick_ms = models.BigIntegerField(_("last tick"), default=0)
    """The newest tick that has a message; 0: none has."""
    paused_at = models.DateTimeField(_("paused at"), null=True)
    """Since when no tick gets a message; null: it is not paused."""
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True)
    pause_reason = models.TextField(_("reason of the pause"), blank=True)

    objects = DelayQManager["RecurringTask"]()

    class Meta:
        verbose_name = _("recurring task")
        verbose_name_plural = _("recurring tasks")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.task}: {self.rule}"
