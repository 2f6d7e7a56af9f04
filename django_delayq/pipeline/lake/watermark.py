"""How far the archive is settled: the ids that a job can take without missing a row that is
committed later."""

from __future__ import annotations

from django.db import connections

from ...core.conf import get_settings
from ...models import ArchivedMessage
from ..sources.settling import last_settled, unseen


def last_settled_id(seconds: float) -> int:
    """The biggest id of this project's archive below which no other id can appear any more; 0 when
    there is none.

    Rows that the database took within the last `seconds` by its own clock are left for later, with
    all rows above the smallest of these ids. Rows above an open transaction are left for later,
    too: see sources/settling.py. Do not call it within a transaction. Raises Refused, and the
    errors of the database.
    """
    return last_settled(
        connections[get_settings().database], ArchivedMessage._meta.db_table, seconds
    )


def unseen_writers() -> list[str]:
    """Why last_settled_id() may be wrong, for a report: the database does not show who writes.
    Empty when it does."""
    problem = unseen(connections[get_settings().database])
    return [problem] if problem else []
