"""Figures of the past, small enough to keep when the archive is pruned."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class Figures(models.Model):
    """The columns of both tables. Whole hours and days are computed anew and replaced, never added
    to. A process that archives computes them from recent rows of the archive (statistician.py), or
    the pipeline from the lake. Both give equal figures.

    Histograms are JSON, bucket -> count (histogram.py): they can be added, so a percentile of
    several rows is exact to a thirty-second of its value.
    """

    messages = models.PositiveBigIntegerField(_("messages"))
    acked = models.PositiveBigIntegerField(_("acked"))
    dead = models.PositiveBigIntegerField(_("dead"))
    cancelled = models.PositiveBigIntegerField(_("cancelled"))
    expired = models.PositiveBigIntegerField(_("expired"))
    attempts = models.PositiveBigIntegerField(_("attempts"))
    """Of all messages together."""
    retried = models.PositiveBigIntegerField(_("retried"))
    """Messages that took more than one attempt."""
    lateness = models.TextField(_("lateness"), default="{}")
    lateness_sum = models.FloatField(_("sum of lateness"), default=0)
    """In milliseconds, as the following; each summand in whole microseconds."""
    lateness_max = models.FloatField(_("highest lateness"), null=True)
    run = models.TextField(_("run time"), default="{}")
    run_sum = models.FloatField(_("sum of run times"), default=0)
    run_max = models.FloatField(_("longest run"), null=True)
    computed_at = models.DateTimeField(_("computed at"), auto_now=True, db_index=True)

    class Meta:
        default_permissions = ()
        abstract = True


class TopicHour(Figures):
    """Messages of a topic that finished in one hour, UTC."""

    hour = models.DateTimeField(_("hour"))
    topic = models.CharField(_("topic"), max_length=64)

    objects = DelayQManager["TopicHour"]()

    class Meta:
        verbose_name = _("hour of a topic")
        verbose_name_plural = _("hours of topics")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["hour", "topic"], name="delayq_topic_hour")]

    def __str__(self) -> str:
        return f"{self.topic} {self.hour:%Y-%m-%d %H}h"


class HourTotal(Figures):
    """Messages of all topics that finished in one hour, UTC: the sum of its rows of TopicHour, for
    pages that would read thousands of them."""

    hour = models.DateTimeField(_("hour"), unique=True)

    objects = DelayQManager["HourTotal"]()

    class Meta:
        verbose_name = _("hour of all topics")
        verbose_name_plural = _("hours of all topics")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.hour:%Y-%m-%d %H}h"


class DayTotal(Figures):
    """Messages of all tasks that finished on one day, UTC: the sum of its rows of TaskDay."""

    day = models.DateField(_("day"), unique=True)

    objects = DelayQManager["DayTotal"]()

    class Meta:
        verbose_name = _("day of all tasks")
        verbose_name_plural = _("days of all tasks")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.day}"


class TaskDay(Figures):
    """Messages of a task in a topic that finished on one day, UTC."""

    day = models.DateField(_("day"))
    topic = models.CharField(_("topic"), max_length=64)
    task = models.CharField(_("task"), max_length=200)
    errors = models.TextField(_("errors"), default="{}")
    """JSON: class of the error, or the reason where there is none -> dead letters. The fifty most
    frequent. Of equally frequent ones, those with the first names."""

    objects = DelayQManager["TaskDay"]()

    class Meta:
        verbose_name = _("day of a task")
        verbose_name_plural = _("days of tasks")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["day", "topic", "task"], name="delayq_task_day")
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.day}"


class BusiestTask(models.Model):
    """One of the tasks with the most messages in a period that ends now, among so many that the
    statistics page cannot sum up each of them. Replaced together with the figures of today."""

    period = models.CharField(_("period"), max_length=8)
    """One of PERIODS (history.py)."""
    topic = models.CharField(_("topic"), max_length=64)
    task = models.CharField(_("task"), max_length=200)
    messages = models.PositiveBigIntegerField(_("messages"))

    objects = DelayQManager["BusiestTask"]()

    class Meta:
        verbose_name = _("busiest task")
        verbose_name_plural = _("busiest tasks")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["period", "topic", "task"], name="delayq_busiest_task")
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.period}"
