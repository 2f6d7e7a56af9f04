"""manage.py delayq_discard: what is dead and needs no replay is marked so."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ...models import ArchivedMessage
from ...operators.replay import Replayed, discard
from .delayq_replay import SelectingCommand


class Command(SelectingCommand):
    """Marks dead letters as dealt with. Exit codes: 0 done, 1 error, 2 wrong options, 130
    Ctrl-C."""

    help = (
        "Marks dead letters as needing no replay: nobody is asked about them again, and "
        "delayq_prune may delete them."
    )
    done = "discarded"
    reason_required = True

    def act(
        self, rows: QuerySet[ArchivedMessage], options: dict[str, Any], progress: Any
    ) -> Replayed:
        """Mark the rows."""
        return discard(
            rows, progress=progress, **{name: options[name] for name in ("reason", "by", "limit")}
        )
