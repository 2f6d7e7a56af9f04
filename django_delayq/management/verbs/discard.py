"""Mark dead letters as needing no replay.

Nobody is asked about them again, and `delayq prune` may delete them. Choose them with filters, or
take all with --all. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq discard --task shop.tasks.sync_stock --until 7d --reason "shop closed"
"""

from __future__ import annotations

from ...operators.replay import discard, preview_discard
from ..selecting import SelectingVerb


class Command(SelectingVerb):
    """Marks dead letters as dealt with."""

    past = "discarded"
    change = staticmethod(discard)
    foresee = staticmethod(preview_discard)
    passed = ("reason", "by", "limit")
    foreseen = ("limit",)
    reason_required = True
