"""The SQL side: the archive, the outbox, and what operators did. All of it lives in DELAYQ["DATABASE"]."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from .conf import get_settings

M = TypeVar("M", bound=models.Model)


class DelayQManager(models.Manager[M]):
    """Reads and writes the database that DELAYQ names, unless told otherwise by using()."""

    def get_queryset(self) -> models.QuerySet[M]:
        """All rows."""
        rows: models.QuerySet[M] = super().get_queryset().using(self._db or get_settings().database)
        return rows


class Final(models.TextChoices):
    """The states that end a message."""

    ACKED = "acked"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class ArchivedMessage(models.Model):
    """How one message ended. One row for each life of a message: its id and the instant at which it was enqueued.

    Ids grow in the order of archiving, so a page is `id < last` and never an OFFSET. To find a message by its key, look
    for the message id that `key_id(topic, key)` gives: it is indexed.
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.UUIDField(_("message id"))
    enqueued_at = models.DateTimeField(_("enqueued at"))
    topic = models.CharField(_("topic"), max_length=64)
    partition = models.PositiveSmallIntegerField(_("partition"))
    task = models.CharField(_("task"), max_length=200)
    key = models.CharField(_("key"), max_length=256, blank=True)
    state = models.CharField(_("state"), max_length=9, choices=Final.choices)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    """One word for what ends without an error of its own: poison, unknown_task, cancelled ..., or what Reject said."""
    body = models.TextField(_("body"))
    """The arguments as JSON text, byte for byte as they were sent: {"args": [...], "kwargs": {...}}."""
    headers = models.TextField(_("headers"), blank=True)
    """JSON object of strings, or empty."""
    priority = models.PositiveSmallIntegerField(_("priority"), default=1)
    ttr_ms = models.PositiveIntegerField(_("time to run"), default=0)
    max_attempts = models.PositiveSmallIntegerField(_("maximum of attempts"), null=True)
    """What this message was given; null: what its task says."""
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    crashes = models.PositiveIntegerField(_("crashes"), default=0)
    history = models.TextField(_("attempts history"), blank=True)
    """One JSON object per line and run: started_ms, run_ms, outcome, worker, error. The newest 8 KiB."""
    due_at = models.DateTimeField(_("due at"))
    """Of the last run."""
    started_at = models.DateTimeField(_("first started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"))
    lateness_ms = models.FloatField(_("lateness"), null=True)
    """Start minus due time of the last run, in milliseconds."""
    run_ms = models.FloatField(_("run time"), null=True)
    """Of the last run, in milliseconds."""
    worker = models.CharField(_("worker"), max_length=200, blank=True)
    error_class = models.CharField(_("error"), max_length=200, blank=True)
    error_message = models.TextField(_("error message"), blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    replay_of = models.BigIntegerField(_("replay of"), null=True)
    """The id of the archived message that this one replays."""
    replayed_by = models.UUIDField(_("replayed by"), null=True)
    """The message id under which it was replayed."""
    replayed_at = models.DateTimeField(_("replayed at"), null=True)
    discarded_at = models.DateTimeField(_("discarded at"), null=True)
    """When an operator decided that this dead letter needs no replay."""

    objects = DelayQManager["ArchivedMessage"]()

    class Meta:
        verbose_name = _("archived message")
        verbose_name_plural = _("archived messages")
        constraints = [models.UniqueConstraint(fields=["message_id", "enqueued_at"], name="delayq_archive_life")]
        indexes = [
            models.Index(fields=["state", "topic", "id"], name="delayq_archive_state"),
            models.Index(fields=["task", "state", "id"], name="delayq_archive_task"),
            models.Index(fields=["finished_at"], name="delayq_archive_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.message_id.hex} ({self.state})"

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One dict per run, the oldest first: started_ms, ended_ms, outcome, worker, error. The newest 8 KiB of them.

        A crash knows only its end; its worker could not say more.
        """
        runs: list[dict[str, Any]] = [json.loads(line) for line in self.history.split("\n") if line]
        if self.worker and self.lateness_ms is not None:
            ended_ms = self.finished_at.timestamp() * 1000
            started_ms = round(self.due_at.timestamp() * 1000 + self.lateness_ms, 3)
            error = f"{self.error_class}: {self.error_message}" if self.error_class else self.reason
            run = {"worker": self.worker, "started_ms": started_ms, "ended_ms": ended_ms, "outcome": self.state}
            runs.append({**run, "error": error})
        return runs


class OutboxStatus(models.TextChoices):
    """Who has a durable message."""

    WAITING = "waiting"
    """Only the outbox: it is far from due, or Redis was away. The relay sends it."""
    SENT = "sent"
    """Redis too. The reconciler sends it again when Redis has lost it."""


class OutboxMessage(models.Model):
    """A message that SQL answers for until it has ended. Written in the caller's transaction, removed by the archiver.

    Times are integers: exactly what Redis will hold.
    """

    id = models.BigAutoField(primary_key=True)
    message_id = models.UUIDField(_("message id"), unique=True)
    enqueued_at_us = models.BigIntegerField(_("enqueued at"))
    """Microseconds since 1970 by Redis' clock. With the message id it names one life of a key."""
    topic = models.CharField(_("topic"), max_length=64)
    task = models.CharField(_("task"), max_length=200)
    key = models.CharField(_("key"), max_length=256, blank=True)
    on_duplicate = models.CharField(_("on duplicate"), max_length=7)
    due_at_ms = models.BigIntegerField(_("due at"))
    expires_at_ms = models.BigIntegerField(_("expires at"), default=0)
    """0: never."""
    record = models.BinaryField(_("record"))
    """Header and body as in Redis (message.py), without the stamp."""
    status = models.CharField(_("status"), max_length=7, choices=OutboxStatus.choices)
    relay_at_ms = models.BigIntegerField(_("relay at"))
    """When the relay, or for a sent one the reconciler, looks at it first."""

    objects = DelayQManager["OutboxMessage"]()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        indexes = [
            models.Index(fields=["status", "relay_at_ms"], name="delayq_outbox_relay"),
            models.Index(fields=["status", "id"], name="delayq_outbox_status"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.message_id.hex} ({self.status})"


class UnarchivableEntry(models.Model):
    """An entry of a finished stream that the archive refused, kept for people: one bad row blocks nobody."""

    id = models.BigAutoField(primary_key=True)
    entry = models.CharField(_("stream entry"), max_length=40)
    topic = models.CharField(_("topic"), max_length=64)
    partition = models.PositiveSmallIntegerField(_("partition"))
    state = models.CharField(_("state"), max_length=9)
    message_id = models.CharField(_("message id"), max_length=32)
    error = models.TextField(_("error"))
    """What the database said, in ASCII, at most 2,000 characters."""
    content = models.TextField(_("content"))
    """The fields of the entry as base64 in JSON, at most 100 KiB."""
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    objects = DelayQManager["UnarchivableEntry"]()

    class Meta:
        verbose_name = _("unarchivable entry")
        verbose_name_plural = _("unarchivable entries")
        constraints = [
            models.UniqueConstraint(fields=["topic", "partition", "entry"], name="delayq_unarchivable_entry")
        ]

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} {self.entry}"


class OperatorAction(models.Model):
    """Who did what to how many messages, and why."""

    id = models.BigAutoField(primary_key=True)
    action = models.CharField(_("action"), max_length=20)
    """replay, discard or prune."""
    operator = models.CharField(_("operator"), max_length=150)
    reason = models.TextField(_("reason"), blank=True)
    selection = models.TextField(_("selection"), blank=True)
    """What was asked for, in words."""
    count = models.PositiveBigIntegerField(_("count"), default=0)
    """How many messages it has changed so far: grows in the transactions that change them."""
    started_at = models.DateTimeField(_("started at"), auto_now_add=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    """Null while it runs, and when it was interrupted."""

    objects = DelayQManager["OperatorAction"]()

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")

    def __str__(self) -> str:
        return f"{self.action} by {self.operator}: {self.count}"
