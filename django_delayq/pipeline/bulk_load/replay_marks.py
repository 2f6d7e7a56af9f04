"""Asks SQL where open dead letters are, and marks those that the job replays."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from django.db import transaction
from django.db.models import Max, Min

from ...core.chunks import chunked
from ...core.conf import get_settings
from ...core.times import stored
from ...models import ArchivedMessage, Final, OperatorAction
from ...operators.replayer import mark_replayed
from ...store.client import BATCH
from ..params import ReplayOptions


def ids_of_open(
    since: datetime | None, until: datetime | None, topic: str, last: int
) -> tuple[int, int]:
    """The ids (lo, hi] of the dead letters of the period and topic up to `last`, from the first one
    that is open on."""
    rows = ArchivedMessage.objects.filter(state=Final.DEAD, pk__lte=last)
    times = {"finished_at__gte": since, "finished_at__lt": until}
    rows = rows.filter(**{name: stored(when) for name, when in times.items() if when})
    rows = rows.filter(topic=topic) if topic else rows
    ids = rows.aggregate(first=Min("pk"), last=Max("pk"))
    if ids["last"] is None:
        return 0, last
    still_open = rows.filter(replayed_at=None, discarded_at=None).aggregate(first=Min("pk"))
    return (still_open["first"] or ids["first"]) - 1, ids["last"]


def mark_origins(
    options: ReplayOptions, selection: str, links: Iterable[tuple[int, UUID | None]]
) -> tuple[int, int]:
    """Write into open origins which message replays them, with one OperatorAction for the whole
    job. It can be repeated.

    Returns how many were marked, and how many stay open because another message has their key.
    """
    alias, marked, kept = get_settings().database, 0, 0
    mine = OperatorAction.objects.filter(action="replay", job=options.job).order_by("pk")
    action = mine.first() or OperatorAction.new(
        "replay", options.by, options.reason, job=options.job, selection=selection
    )
    for page in chunked(links, BATCH):
        given = {pk: message_id for pk, message_id in page if message_id is not None}
        kept += len(page) - len(given)
        still_open = ArchivedMessage.objects.filter(replayed_at=None, discarded_at=None)
        with transaction.atomic(using=alias):
            action.add(0)  # a write first: see bulk_run.BulkRun.open
            count = mark_replayed(still_open, given)
            action.add(count)
        marked += count
    action.finish()
    return marked, kept
