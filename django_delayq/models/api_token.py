"""Tokens of the HTTP API."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class ApiRight(models.TextChoices):
    """What a token may do in its topics."""

    SEND = "send"
    """Enqueue, cancel and reschedule."""
    CONSUME = "consume"
    """Claim, and ack, nack, extend or release what it has claimed."""
    INSPECT = "inspect"
    """Read topics, waiting messages and dead letters, with their arguments."""
    OPERATE = "operate"
    """Pause, resume, replay and discard."""


class ApiToken(models.Model):
    """A token of the HTTP API. The table has only a hash of its secret part."""

    name = models.CharField(_("name"), max_length=64)
    """Names the caller in the archive and in the record of operator actions."""
    public_id = models.CharField(_("public part"), max_length=16, unique=True)
    """The first part of the token, by which it is found."""
    digest = models.CharField(_("digest"), max_length=64)
    """SHA-256 of the whole token, hexadecimal."""
    rights = models.CharField(_("rights"), max_length=100)
    """Values of ApiRight, separated by spaces."""
    topics = models.TextField(_("topics"), default="*")
    """Names of topics separated by spaces, without the namespace; `*` matches any characters."""
    namespace = models.CharField(_("namespace"), max_length=40, blank=True)
    """The prefix of the name of each topic. The holder of the token never sees it."""
    rate = models.CharField(_("rate"), max_length=20, blank=True)
    """How many calls it may make: "100/s", "600/m" or "5000/h"; empty: any number."""
    created_by = models.CharField(_("created by"), max_length=150, blank=True)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    last_used_at = models.DateTimeField(_("last used at"), null=True)
    """To the minute."""
    revoked_at = models.DateTimeField(_("revoked at"), null=True)

    objects = DelayQManager["ApiToken"]()

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} ({self.public_id})"

    @property
    def status(self) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        is_over = self.expires_at is not None and self.expires_at <= timezone.now()
        return "expired" if is_over else "valid"
