"""What each audit of the pipeline has found."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .manager import DelayQManager


class AuditRun(models.Model):
    """One audit of all topics, with its end."""

    finished_at = models.DateTimeField(auto_now_add=True, db_index=True)
    findings = models.PositiveBigIntegerField()
    """Differences that were confirmed and not repaired."""
    kinds = models.TextField(default="{}")
    """JSON: how many of each kind."""

    objects = DelayQManager["AuditRun"]()

    class Meta:
        verbose_name = _("audit")
        verbose_name_plural = _("audits")
        default_permissions = ()

    def __str__(self) -> str:
        return f"audit {self.pk}: {self.findings} findings"
