"""How far a bulk operation is, how quick, and whether anybody is at it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from ..archive.selection import Selection
from ..core.exceptions import InvalidMessage
from ..models import BulkOperation, BulkStatus

#: An operation that no worker has taken for so long waits for one that does not exist.
UNTAKEN_AFTER = timedelta(seconds=15)
#: A worker that has not been heard of for so long has died; another one goes on.
SILENT_AFTER = timedelta(seconds=30)
#: Options that a page shows: the others are the runner's.
_SHOWN = ("delay", "rate")
#: Rows that were skipped for these were never of those that it is about.
NOT_MEANT = ("not dead", "already replayed", "discarded")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Figures of one operation, as of now."""

    is_alive: bool
    """Whether it waits or runs, so that there is something to follow and to cancel."""
    is_untaken: bool
    """Whether it has waited so long that there seems to be no worker."""
    is_silent: bool
    """Whether the worker that ran it has not been heard of for a while."""
    waits_since: datetime
    """When it was ordered, or when a worker that ended has put it down."""
    changed: int
    """Messages that it has changed; of a dry run those that it would change."""
    skipped: Mapping[str, int]
    """Rows that were left as they are, by the reason in words; the most frequent first."""
    done: int
    """Of those that it is about."""
    total: int | None
    """None until a worker has counted."""
    percent: int
    took: float | None
    """Seconds since a worker took it, or until its end; None before."""
    rate: float | None
    """Messages per second on average; None until there is one."""
    left: float | None
    """Seconds that the rest takes at that rate; None when nobody can say."""
    options: Mapping[str, Any]
    """delay and rate, when they were given."""
    words: str
    """What it is about."""


def progress(operation: BulkOperation, at: datetime | None = None) -> Progress:
    """The figures of a stored operation."""
    at = at or timezone.now()
    status = BulkStatus(operation.status)
    skipped: dict[str, int] = json.loads(operation.skipped)
    total, done = operation.total, _done(operation, skipped)
    took = _took(operation, at)
    rate = done / took if took and done and not operation.dry_run else None
    waits_since = max(operation.created_at, operation.alive_at or operation.created_at)
    runs = status is BulkStatus.RUNNING
    return Progress(
        is_alive=runs or status is BulkStatus.WAITING,
        is_untaken=status is BulkStatus.WAITING and at - waits_since > UNTAKEN_AFTER,
        is_silent=runs and at - waits_since > SILENT_AFTER,
        waits_since=waits_since,
        changed=(total or 0) if operation.dry_run else operation.count,
        skipped=dict(sorted(skipped.items(), key=lambda pair: -pair[1])),
        done=done,
        total=total,
        percent=100 * done // total if total else 0,
        took=took,
        rate=rate,
        left=(total - done) / rate if runs and rate and total is not None else None,
        options={
            name: value
            for name, value in json.loads(operation.options).items()
            if value and name in _SHOWN
        },
        words=in_words(operation),
    )


def in_words(operation: BulkOperation) -> str:
    """What it is about, also when a newer version has written something that this one does not
    know."""
    try:
        return Selection.decode(operation.selection).in_words()
    except InvalidMessage:
        return operation.selection


def _done(operation: BulkOperation, skipped: Mapping[str, int]) -> int:
    if operation.dry_run:  # it only counts
        return operation.total or 0
    meant = operation.count + sum(number for why, number in skipped.items() if why not in NOT_MEANT)
    return meant if operation.total is None else min(meant, operation.total)


def _took(operation: BulkOperation, at: datetime) -> float | None:
    if operation.started_at is None:
        return None
    return max(0.0, ((operation.finished_at or at) - operation.started_at).total_seconds())
