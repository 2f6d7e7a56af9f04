"""How messages ended."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..core.message import Final, runs_of
from .functions import UtcNow
from .manager import DelayQManager


class ArchivedMessage(models.Model):
    """How one message ended. One row for each life of a message: its id and the instant at which it
    was enqueued.

    Ids grow in the order of archiving, so a page is `id < last` and never an OFFSET. To find a
    message by its key, look for the message id that `key_id(topic, key)` gives: it is indexed.
    """

    message_id = models.UUIDField(_("message id"))
    enqueued_at = models.DateTimeField(_("enqueued at"))
    topic = models.CharField(_("topic"), max_length=64)
    partition = models.PositiveSmallIntegerField(_("partition"))
    task = models.CharField(_("task"), max_length=200)
    key = models.CharField(_("key"), max_length=256, blank=True)
    state = models.CharField(_("state"), max_length=9, choices=Final.choices)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    """One word for a message that ends without an error of its own: poison, unknown_task, cancelled
    ..., or the reason of Reject."""
    body = models.TextField(_("body"))
    """The arguments as JSON text, byte for byte as they were sent: {"args": [...], "kwargs":
    {...}}."""
    headers = models.TextField(_("headers"), blank=True)
    """JSON object of strings, or empty."""
    priority = models.PositiveSmallIntegerField(_("priority"), default=1)
    ttr_ms = models.PositiveIntegerField(_("time to run"), default=0)
    max_attempts = models.PositiveSmallIntegerField(_("maximum of attempts"), null=True)
    """The number that this message was given; null: that of its task."""
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    crashes = models.PositiveIntegerField(_("crashes"), default=0)
    history = models.TextField(_("attempts history"), blank=True)
    """One JSON object per line and run: started_ms, run_ms, outcome, worker, error. The newest 8
    KiB."""
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
    result = models.TextField(_("result"), blank=True)
    """JSON object with `result` and `progress`, of a task that has them; else empty. `redaction`
    says that the result was redacted."""
    replayed_by = models.UUIDField(_("replayed by"), null=True)
    """The message id under which it was replayed."""
    replayed_at = models.DateTimeField(_("replayed at"), null=True)
    discarded_at = models.DateTimeField(_("discarded at"), null=True)
    """When an operator decided that this dead letter needs no replay."""

    archived_at = models.DateTimeField(_("archived at"), db_default=UtcNow())
    """When the database took the row, by its own clock. Below a row that is older than any open
    transaction no smaller id can appear any more."""

    objects = DelayQManager["ArchivedMessage"]()

    class Meta:
        verbose_name = _("archived message")
        verbose_name_plural = _("archived messages")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["message_id", "enqueued_at"], name="delayq_archive_life"
            )
        ]
        indexes = [
            models.Index(fields=["state", "topic", "id"], name="delayq_archive_state"),
            models.Index(fields=["task", "state", "id"], name="delayq_archive_task"),
            models.Index(fields=["finished_at"], name="delayq_archive_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.message_id.hex} ({self.state})"

    @property
    def runs(self) -> list[dict[str, Any]]:
        """One dict per run, the oldest first: started_ms, ended_ms, outcome, worker, error. The
        newest 8 KiB of them.

        Of a crash only the end is known: its worker could not report more.
        """
        runs = runs_of(self.history.encode())
        if self.worker and self.lateness_ms is not None:
            ended_ms = self.finished_at.timestamp() * 1000
            started_ms = round(self.due_at.timestamp() * 1000 + self.lateness_ms, 3)
            error = f"{self.error_class}: {self.error_message}" if self.error_class else self.reason
            run = {
                "worker": self.worker,
                "started_ms": started_ms,
                "ended_ms": ended_ms,
                "outcome": self.state,
            }
            runs.append({**run, "error": error})
        return runs


class UnarchivableEntry(models.Model):
    """An entry of a finished stream that the archive refused, kept for people: one bad row blocks
    nobody."""

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
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["topic", "partition", "entry"], name="delayq_unarchivable_entry"
            )
        ]

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition} {self.entry}"
