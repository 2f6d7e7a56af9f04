"""How far the archive is settled: the ids that a job may take without missing a row that commits
later."""

from __future__ import annotations

from ..sources.settling import last_settled, unseen


def last_settled_id(seconds: float) -> int:
    """The biggest id of this project's archive below which no other one can appear any more; 0 when
    there is none.

    Rows that the database took within the last `seconds` by its own clock are left for later, and
    with them all above the smallest of these; so is what may be above an open transaction: see
    settling.py. Not within a transaction of one's own. Raises Refused and what the database raises.
    """
    from django.db import connections

    from ...core.conf import get_settings
    from ...models import ArchivedMessage

    return last_settled(
        connections[get_settings().database], ArchivedMessage._meta.db_table, seconds
    )


def unseen_writers() -> list[str]:
    """Why last_settled_id() may be wrong, for a report: the database does not show who writes.
    Empty when it does."""
    from django.db import connections

    from ...core.conf import get_settings

    problem = unseen(connections[get_settings().database])
    return [problem] if problem else []
