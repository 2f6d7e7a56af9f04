"""What operators do, what they have ordered, and what they are permitted to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from django.db import Error, models
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..core.conf import get_settings
from ..core.exceptions import OutcomeUnknown
from ..core.times import shown_instant
from .manager import DelayQManager


class BulkKind(models.TextChoices):
    """What can be done to many messages at once."""

    REPLAY = "replay"
    DISCARD = "discard"
    PURGE = "purge"
    CANCEL = "cancel"
    SHIFT = "shift"
    """Another due time, earlier or later by the same length of time."""
    RUN_NOW = "run now"
    MOVE = "move"
    """To another topic."""
    EDIT = "edit"
    """Another value of one argument."""

    @property
    def is_of_waiting(self) -> bool:
        """Whether it is about waiting messages that a WaitingSelection names."""
        return self not in (BulkKind.REPLAY, BulkKind.DISCARD, BulkKind.PURGE)


class BulkStatus(models.TextChoices):
    """How far a bulk operation is."""

    WAITING = "waiting"
    """No worker has taken it yet."""
    RUNNING = "running"
    """A worker runs it, or ran it and died: then another goes on."""
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class BulkOperation(models.Model):
    """An operation on many messages that an operator has ordered. A worker runs what a page has
    stored, and another resumes it. replay() and discard() run theirs themselves.

    The fields that tell how far it is change in the transactions that change the messages, so a
    kill loses and repeats nothing.
    """

    kind = models.CharField(_("kind"), max_length=10, choices=BulkKind.choices)
    dry_run = models.BooleanField(_("dry run"), default=False)
    """Check, and change nothing."""
    selection = models.TextField(_("selection"))
    """JSON of a Selection (selection.py), or of a WaitingSelection. In words when it runs in
    place."""
    options = models.TextField(_("options"), default="{}")
    """JSON: delay (seconds), rate (messages per second), began_ms (from when on the rate counts);
    by (seconds) of a shift, to (a topic) of a move, edit (an ArgumentEdit), and asked (a hash of
    the filters as they were typed)."""
    in_place = models.BooleanField(_("in place"), default=False)
    """Whether the process that ordered it also runs it: then no worker takes it over."""
    token = models.UUIDField(_("token"), null=True)
    """Of the form that ordered it: a form that is sent twice counts once."""
    operator = models.CharField(_("operator"), max_length=150)
    reason = models.TextField(_("reason"), blank=True)
    status = models.CharField(
        _("status"), max_length=9, choices=BulkStatus.choices, default=BulkStatus.WAITING
    )
    cutoff = models.BigIntegerField(_("cutoff"), default=0)
    """The newest row of the archive when it was ordered: messages that end later are not part of
    it. For waiting messages Redis' clock then, in microseconds: what is enqueued later is not part
    of it."""
    position = models.BigIntegerField(_("position"), default=0)
    """Rows of the archive, or of its own list (BulkMessage), up to this id are dealt with."""
    reached = models.BigIntegerField(_("reached"), default=0)
    """Messages of its list between position and this id may be changed in Redis already: a worker
    was at them."""
    cursor = models.TextField(_("cursor"), blank=True)
    """JSON: how far the search for waiting messages is."""
    total = models.PositiveBigIntegerField(_("total"), null=True)
    """How many messages it has to change; null until the worker has counted them."""
    count = models.PositiveBigIntegerField(_("count"), default=0)
    """How many messages it has changed so far."""
    skipped = models.TextField(_("skipped"), default="{}")
    """JSON: how many rows were left as they are, by the reason in words."""
    error = models.TextField(_("error"), blank=True)
    worker = models.CharField(_("worker"), max_length=200, blank=True)
    alive_at = models.DateTimeField(_("alive at"), null=True)
    """When that worker last did something for it."""
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)

    objects = DelayQManager["BulkOperation"]()

    class Meta:
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
        default_permissions = ()
        indexes = [models.Index(fields=["status", "id"], name="delayq_bulk_status")]
        constraints = [
            models.UniqueConstraint(fields=["token", "dry_run"], name="delayq_bulk_token")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk} ({self.status})"

    @property
    def action(self) -> OperatorAction | None:
        """The record of the order; None for a dry run."""
        return self.actions.filter(action=self.kind).first()


class BulkMessage(models.Model):
    """One message of a bulk operation, a waiting one or a dead letter: as it was found, and what
    has become of it. Kept for a month."""

    operation = models.ForeignKey(BulkOperation, models.CASCADE, related_name="messages")
    topic = models.CharField(_("topic"), max_length=64)
    message_id = models.UUIDField(_("message id"))
    enqueued_at_us = models.BigIntegerField(_("enqueued at"))
    """Microseconds since 1970. With the message id it names one life of a key."""
    task = models.CharField(_("task"), max_length=200)
    key = models.CharField(_("key"), max_length=256, blank=True)
    due_at_ms = models.BigIntegerField(_("due at"))
    """When it was due."""
    to_due_at_ms = models.BigIntegerField(_("new due time"))
    """When it is to be due. The same for an operation that leaves it."""
    digest = models.CharField(_("digest"), max_length=64, blank=True)
    """Of the arguments that it is to have after an edit."""
    skipped = models.CharField(_("skipped"), max_length=40, blank=True)
    """Why it was left as it is; empty for a message that was changed, or has yet to be."""

    objects = DelayQManager["BulkMessage"]()

    class Meta:
        verbose_name = _("message of a bulk operation")
        verbose_name_plural = _("messages of bulk operations")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(
                fields=["operation", "message_id", "topic", "enqueued_at_us"],
                name="delayq_bulk_message",
            )
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.message_id.hex}"

    @property
    def due_at(self) -> datetime:
        """due_at_ms as an instant."""
        return shown_instant(self.due_at_ms)

    @property
    def new_due_at(self) -> datetime:
        """to_due_at_ms as an instant."""
        return shown_instant(self.to_due_at_ms)


class OperatorAction(models.Model):
    """Who did what to how many messages, and why. Programs read the fields; `selection` is only for
    people."""

    action = models.CharField(_("action"), max_length=20)
    """replay, discard, prune, pause, cancel ...: what was done, in one word."""
    operator = models.CharField(_("operator"), max_length=150)
    reason = models.TextField(_("reason"), blank=True)
    topic = models.CharField(_("topic"), max_length=64, blank=True)
    """The topic it was done to, or that of the message."""
    message_id = models.UUIDField(_("message id"), null=True)
    archived_id = models.BigIntegerField(_("archived message"), null=True)
    """Id of the row of the archive to which it was done."""
    bulk_operation = models.ForeignKey(
        BulkOperation, models.SET_NULL, null=True, related_name="actions"
    )
    """The operation that this action ordered or cancelled."""
    before = models.DateTimeField(_("before"), null=True)
    """Of a prune: only rows that finished before this instant."""
    lake = models.CharField(_("lake"), max_length=400, blank=True)
    """Of a prune by the pipeline: the lake that holds what was deleted."""
    job = models.CharField(_("job"), max_length=64, blank=True)
    """Name of the pipeline job that did it."""
    selection = models.TextField(_("selection"), blank=True)
    """The other conditions of the order, in words."""
    count = models.PositiveBigIntegerField(_("count"), default=0)
    """How many messages it has changed so far: grows in the transactions that change them."""
    started_at = models.DateTimeField(_("started at"), auto_now_add=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    """Null while it runs, and when it was interrupted."""

    objects = DelayQManager["OperatorAction"]()

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.action} by {self.operator}: {self.count}"

    @classmethod
    def new(cls, action: str, by: str, reason: str = "", **fields: Any) -> OperatorAction:
        """A stored action; names and words that are too long are cut."""
        fields["selection"] = fields.get("selection", "")[:2_000]
        created = cls(action=action, operator=by[:150], reason=reason, **fields)
        created.save(using=get_settings().database)
        return created

    @classmethod
    @contextmanager
    def recorded(
        cls, action: str, by: str, reason: str = "", **fields: Any
    ) -> Iterator[OperatorAction]:
        """Store the action before anything changes, and its end afterwards. When an exception says
        that nothing was changed, no action stays."""
        record = cls.new(action, by, reason, **fields)
        try:
            yield record
        except OutcomeUnknown:
            lost = "the answer was lost, it may have been done"
            record.selection = ", ".join(filter(None, (record.selection, lost)))
            record.save(using=get_settings().database)
            raise
        except Exception:
            with suppress(Error):  # the database itself may have failed
                cls.objects.filter(pk=record.pk, count=0).delete()
            raise
        record.finish()

    def add(self, count: int) -> None:
        """Count more messages, in the transaction that changes them."""
        type(self).objects.filter(pk=self.pk).update(count=F("count") + count)

    def finish(self, at: datetime | None = None) -> None:
        """Store that it has ended: now, unless another instant is given."""
        self.finished_at = at or timezone.now()
        type(self).objects.filter(pk=self.pk).update(finished_at=self.finished_at)


class Dashboard(models.Model):
    """No table. It is the entry of the operators' pages in the admin, and has the permissions for
    these pages."""

    class Meta:
        managed = False
        default_permissions = ()
        verbose_name = _("overview")
        verbose_name_plural = _("Overview")
        permissions = [
            ("view_dashboard", "Can see topics, messages, the archive and workers"),
            ("view_payload", "Can see arguments, headers and errors of messages"),
            ("replay_message", "Can replay dead letters"),
            ("edit_message", "Can write arguments: edit, edit and replay, schedule"),
            ("cancel_message", "Can cancel, reschedule and run waiting messages now"),
            ("discard_message", "Can discard dead letters"),
            ("pause_topic", "Can pause and resume topics and workers"),
            ("bulk_operate", "Can do things to many messages at once"),
            ("download_messages", "Can download lists of messages as CSV"),
            ("manage_tokens", "Can make and revoke tokens of the HTTP API"),
        ]

    def __str__(self) -> str:
        return "Dashboard"
