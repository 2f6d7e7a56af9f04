"""The outbox: messages that SQL answers for until they have ended."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class OutboxStatus(models.TextChoices):
    """Who has a message, and which change Redis has yet to hear of."""

    WAITING = "waiting"
    """It is far from due, or Redis was away. The relay sends it."""
    SENT = "sent"
    """Redis has it too. The reconciler sends it again when Redis has lost it."""
    CANCELLED = "cancelled"
    """Redis may have it and has to hear that it is cancelled, at the commit or from the relay. The
    row is removed when the message is archived."""
    MOVED = "moved"
    """Redis may have it and has to hear of its new due time, at the commit or from the relay."""


class OutboxMessage(models.Model):
    """A message that SQL answers for until it has ended. Written in the caller's transaction,
    removed by the archiver.

    A row without a record (cancelled or moved) only notes a change to a message that Redis alone
    has. Times are integers: exactly what Redis will hold.
    """

    message_id = models.UUIDField(_("message id"), unique=True)
    enqueued_at_us = models.BigIntegerField(_("enqueued at"))
    """Microseconds since 1970 by Redis' clock. With the message id it names one life of a key."""
    topic = models.CharField(_("topic"), max_length=64)
    task = models.CharField(_("task"), max_length=200)
    key = models.CharField(_("key"), max_length=256, blank=True)
    on_duplicate = models.CharField(_("on duplicate"), max_length=40)
    """The mode. With max_wait also its ms, and, once it has replaced another row, the first instant
    in ms: `replace:60000:1763632200123`."""
    due_at_ms = models.BigIntegerField(_("due at"))
    expires_at_ms = models.BigIntegerField(_("expires at"), default=0)
    """0: never."""
    record = models.BinaryField(_("record"))
    """Header and body as in Redis (message.py), without the stamp."""
    status = models.CharField(_("status"), max_length=9, choices=OutboxStatus.choices)
    may_be_in_redis = models.BooleanField(default=False)
    """Of a waiting row: Redis may hold the message as well, or another life of its id, so the
    message is never treated as one that is only here. Of a row without a record: False when Redis
    may have obeyed already, and only its answer was lost."""
    changed_at_us = models.BigIntegerField(default=0)
    """When it was cancelled or moved here. A message that is enqueued under its key later is not
    meant. 0: Redis has obeyed."""
    moved_to_ms = models.BigIntegerField(default=0)
    """The new due time of the message that may be live in Redis under this id: it was moved while
    Redis was away. 0: it was not moved."""
    reason = models.CharField(max_length=200, blank=True)
    """Why it is cancelled."""
    relay_at_ms = models.BigIntegerField(_("relay at"))
    """When the relay (or the reconciler, when the row is sent) first takes it."""

    objects = DelayQManager["OutboxMessage"]()

    class Meta:
        verbose_name = _("outbox message")
        verbose_name_plural = _("outbox messages")
        default_permissions = ()
        indexes = [
            models.Index(fields=["status", "relay_at_ms"], name="delayq_outbox_relay"),
            models.Index(fields=["status", "id"], name="delayq_outbox_status"),
            models.Index(fields=["topic", "status", "due_at_ms", "id"], name="delayq_outbox_due"),
        ]

    def __str__(self) -> str:
        return f"{self.task} {self.message_id.hex} ({self.status})"
