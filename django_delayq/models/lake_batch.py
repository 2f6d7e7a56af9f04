"""What the data pipeline stores in SQL: the batches of a lake, and the newest forecast."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class LakeBatch(models.Model):
    """A range of ids of the archive that an export has taken to a lake, or is taking. The log of
    the lake's table decides what the lake holds; this row is what the log forgets."""

    table_id = models.UUIDField(_("table"))
    """The id of the lake's table, wherever the table is."""
    lo = models.BigIntegerField(_("after id"))
    hi = models.BigIntegerField(_("up to id"))
    version = models.BigIntegerField(_("version"), null=True)
    """Of the table, with these rows as they are now; null: not committed yet."""
    rows = models.BigIntegerField(_("rows"), null=True)
    """That were exported."""
    pruned = models.BigIntegerField(_("rows pruned"), default=0)
    """That an export has deleted from SQL."""
    counted_at = models.DateTimeField(_("counted at"), null=True)
    """When the hours of its rows were last computed; null: they have to be."""
    problem = models.TextField(_("problem"), blank=True)
    """Why the batch does not go on."""

    objects = DelayQManager["LakeBatch"]()

    class Meta:
        verbose_name = _("batch of a lake")
        verbose_name_plural = _("batches of lakes")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["table_id", "lo"], name="delayq_lake_batch")]

    def __str__(self) -> str:
        return f"{self.lo}-{self.hi}"


class Forecast(models.Model):
    """What waited at one instant, and when it falls due. Only the newest is kept."""

    taken_at = models.DateTimeField(_("taken at"))
    """The instant that its counts are about: the beginning of the snapshot."""
    waiting = models.BigIntegerField(_("waiting"))
    overdue = models.BigIntegerField(_("overdue"))
    peak_at = models.DateTimeField(_("peak at"), null=True)
    """The minute to come in which most fall due."""
    peak = models.BigIntegerField(_("peak"), default=0)
    """Messages in it."""
    drain_rate = models.FloatField(_("drain rate"), null=True)
    """Messages a second; null: not known."""

    objects = DelayQManager["Forecast"]()

    class Meta:
        verbose_name = _("forecast")
        verbose_name_plural = _("forecasts")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.taken_at:%Y-%m-%d %H:%M}"


class ForecastUnit(models.TextChoices):
    """Length of a span of a forecast."""

    MINUTE = "minute", _("minute")
    """Of the next 24 hours, of all topics together."""
    HOUR = "hour", _("hour")
    """Of the next 24 hours by topic, of 14 days for all topics together."""
    DAY = "day", _("day")
    """UTC. Of the next 14 days by topic, all to come for all topics together."""


class ForecastCount(models.Model):
    """Messages of a topic, or of all, that fall due in one span; what is overdue is in the
    first."""

    forecast = models.ForeignKey(
        Forecast, models.CASCADE, related_name="counts", verbose_name=_("forecast")
    )
    unit = models.CharField(_("unit"), max_length=6, choices=ForecastUnit.choices)
    at = models.DateTimeField(_("at"))
    """Beginning of the span."""
    topic = models.CharField(_("topic"), max_length=64)
    """Empty: all topics together."""
    messages = models.BigIntegerField(_("messages"))

    objects = DelayQManager["ForecastCount"]()

    class Meta:
        verbose_name = _("count of a forecast")
        verbose_name_plural = _("counts of a forecast")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["forecast", "unit", "at", "topic"], name="delayq_forecast_count"
            )
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.unit} {self.at:%Y-%m-%d %H:%M}: {self.messages}"
