"""Mark dead letters as needing no replay.

Nobody is asked about them again, and `delayq prune` may delete them. Choose them with filters, or
take all with --all. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq discard --task shop.tasks.sync_stock --until 7d --reason "shop closed"
"""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ...models import ArchivedMessage
from ...operators.replay import Replayed, discard
from ..selecting import SelectingVerb


class Command(SelectingVerb):
    """Marks dead letters as dealt with."""

    past = "discarded"
    reason_required = True

    def change(
        self, rows: QuerySet[ArchivedMessage], options: dict[str, Any], progress: Any
    ) -> Replayed:
        """Mark the rows."""
        given = {name: options[name] for name in ("reason", "by", "limit")}
        return discard(rows, progress=progress, **given)
