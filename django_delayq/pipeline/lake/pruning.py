"""Deletes from SQL the rows that the lake has, after an exact comparison, in short transactions,
and never an open dead letter. A month of a partitioned archive is dropped when the lake has it
all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any

from django.db import connections, transaction
from django.db.models import F, Q

from ...archive.months import drop_month, held_since, is_droppable, months_before
from ...archive.prune import MIN_AGE, OPEN, delete_counted, needed_in, still_needed
from ...core.conf import get_settings
from ...core.exceptions import ArchiveBusy
from ...core.job_report import Tell
from ...core.times import stored
from ...models import ArchivedMessage, LakeBatch, OperatorAction
from ...stats.stats_service import SETTLE
from ..job_errors import Refused
from .batches import SAME
from .differences import Differences
from .ledger import Ledger

#: Rows that one transaction looks at.
CHUNK = 5_000


@dataclass
class PrunedBatches:
    """What prune_batches() has done."""

    count: int = 0
    """Rows that were deleted, or would be in a dry run."""
    kept: int = 0
    """Old dead letters that stay, because nobody has replayed or discarded them."""
    problems: list[str] = field(default_factory=list)
    """Batches that were left alone, and why."""


@dataclass
class OldRows:
    """What one batch has to prune."""

    batch: LakeBatch
    before: datetime
    """Rows that finished earlier are old enough, as far as `in_time` applies to them."""
    in_time: Q

    def __post_init__(self) -> None:
        self.rows: int = self.every.count()
        """How many rows SQL had of the batch before they were compared, without those that went
        since with a month."""
        self.words = f"The batch of the ids {self.batch.lo + 1:,} to {self.batch.hi:,}"

    @property
    def every(self) -> Any:
        """All rows that SQL has of the batch."""
        return ArchivedMessage.objects.filter(pk__gt=self.batch.lo, pk__lte=self.batch.hi)

    @property
    def going(self) -> Any:
        """Those that are old enough, without open dead letters."""
        return self.every.filter(self.old).exclude(OPEN)

    @property
    def old(self) -> Q:
        """What applies to rows that are old enough."""
        return Q(finished_at__lt=self.before) & self.in_time

    def has_grown(self) -> bool:
        """Whether the batch got rows after it was compared."""
        return bool(self.every.count() > self.rows)

    def enter(self, rows: Any) -> int:
        """Enter in the ledger how many of these rows are of the batch: they go. Raises
        _HasGrown."""
        count = int(rows.filter(pk__gt=self.batch.lo, pk__lte=self.batch.hi).count())
        if count:
            # The write comes first, because it locks out another prune of this batch.
            LakeBatch.objects.filter(pk=self.batch.pk).update(pruned=F("pruned") + count)
            if self.has_grown():
                raise _HasGrown
        return count


class _HasGrown(Exception):
    """SQL has rows of a batch that were not compared."""


def prune_batches(
    ledger: Ledger,
    older_than: timedelta,
    compare: Callable[[Sequence[LakeBatch]], Differences],
    *,
    by: str,
    dry_run: bool,
    tell: Tell,
) -> PrunedBatches:
    """Delete the rows of committed batches that finished longer ago than `older_than` (1 hour or
    more), if the lake has all rows that SQL has of the batch, as SQL has them. Rows of today (UTC)
    stay until the figures of the batch are computed, and in a partitioned archive rows of a month
    that is not over so long. After an interruption, the next call goes on. `compare` says where
    SQL and the lake differ in batches; `by` is for the OperatorAction. The ledger has to be up to
    date. Raises Refused, and LakeError when a file is not as the log says.
    """
    if older_than < MIN_AGE:
        raise Refused(
            "Rows are pruned 1 hour after they finished at the earliest: they stop a second "
            "delivery."
        )
    now, done = datetime.now(tz=zones.utc), PrunedBatches()
    limit = now - older_than
    whole = []
    for due in _due(ledger, now, limit, done):
        found = compare([due.batch])
        if not (differing := found.rows.total() - found.count(SAME)):
            whole.append(due)
            continue
        problem = (
            f"{due.words} is not pruned: {differing:,} rows of SQL are not as the lake has them. "
            f"Run the audit: it names them, and --repair exports them again."
        )
        done.problems.append(problem)
        if not dry_run:
            LakeBatch.objects.filter(pk=due.batch.pk).update(problem=problem)
    if dry_run:
        done.count = sum(due.going.count() for due in whole)
    elif whole:
        words = f"what the lake {ledger.name} holds, finished before {limit:%Y-%m-%d %H:%M:%S}Z"
        with OperatorAction.recorded(
            "prune", by, before=stored(limit), lake=ledger.name[:400], selection=words
        ) as action:
            _drop_months(whole, stored(limit), done, action)
            for due in whole:
                _prune(due, done, action)
                tell(f"pruned {done.count:,} rows up to id {due.batch.hi:,}")
    return done


def _due(ledger: Ledger, now: datetime, limit: datetime, done: PrunedBatches) -> Iterator[OldRows]:
    """Batches with rows to delete."""
    # The figures of a day are computed when it is over, from all of its rows.
    today = (now - SETTLE).replace(hour=0, minute=0, second=0, microsecond=0)
    held = held_since(connections[get_settings().database], stored(limit))
    in_time = Q(enqueued_at__lt=held) if held else Q()
    for batch in ledger.batches.filter(version__isnull=False, pruned__lt=F("rows")):
        before = limit if batch.counted_at else min(limit, today)
        due = OldRows(batch, stored(before), in_time)
        done.kept += due.every.filter(due.old & OPEN).count()
        if due.going.exists():
            yield due


def _drop_months(
    whole: Sequence[OldRows], limit: datetime, done: PrunedBatches, action: OperatorAction
) -> None:
    """Drop the months that were over at this instant, when few of their rows are not of these
    batches. What is not dropped is left to be deleted."""
    goes, connection = _together(whole) & ~OPEN, connections[get_settings().database]
    gone: list[int] = []

    def record(rows: Any) -> int:
        """Enter the rows that go for each batch, and in the record of the prune."""
        gone[:] = [due.enter(rows) for due in whole]
        action.add(sum(gone))
        return sum(gone)

    for month in months_before(connection, limit):
        if not is_droppable(month, goes):
            continue
        needed = needed_in(month.rows.filter(goes))
        with suppress(ArchiveBusy, _HasGrown):
            if drop_month(connection, month, goes & ~Q(pk__in=needed), record):
                done.count += sum(gone)
                for due, count in zip(whole, gone, strict=True):
                    due.rows -= count


def _together(whole: Sequence[OldRows]) -> Q:
    """What applies to the rows of these batches that are old enough. Batches that follow each other
    are one range."""
    ranges: list[tuple[datetime, int, int]] = []
    for before, lo, hi in sorted((due.before, due.batch.lo, due.batch.hi) for due in whole):
        follows = ranges and ranges[-1][0] == before and lo <= ranges[-1][2]
        ranges.append((before, ranges.pop()[1] if follows else lo, hi))
    old = Q()
    for before, lo, hi in ranges:
        old |= Q(pk__gt=lo, pk__lte=hi, finished_at__lt=before)
    return old


def _prune(due: OldRows, done: PrunedBatches, action: OperatorAction) -> None:
    """Prune one batch, in chunks."""
    batch, alias = due.batch, get_settings().database
    if due.has_grown():
        done.problems.append(
            f"{due.words} is not pruned: it got rows while it was compared. Run the audit."
        )
        return
    at = batch.lo
    while at < batch.hi:
        pks = due.going.filter(pk__gt=at).order_by("pk").values_list("pk", flat=True)
        edge = next(iter(pks[CHUNK - 1 : CHUNK]), batch.hi)
        goes = due.going.filter(pk__gt=at, pk__lte=edge)
        needed = still_needed(goes)
        with transaction.atomic(using=alias):
            row = LakeBatch.objects.filter(pk=batch.pk)
            # The write comes first, because it locks out another prune of this batch.
            row.update(pruned=F("pruned"))
            count = delete_counted(goes.exclude(pk__in=needed), action)
            row.update(pruned=F("pruned") + count, problem="")
        done.count += count
        at = edge
