"""Deletes from SQL the rows that a verified batch of the lake holds, in short transactions, and
never an open dead letter. A month of a partitioned archive is dropped when the lake has it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any

import pyarrow.parquet as pq
from django.db import connections, transaction
from django.db.models import F, Q
from django.utils import timezone
from pyspark.sql import DataFrame

from ...archive.months import drop_month, held_since, is_droppable, months_before
from ...archive.prune import MIN_AGE, OPEN, delete_counted, needed_in, still_needed
from ...core.conf import get_settings
from ...core.exceptions import ArchiveBusy
from ...core.times import stored
from ...models import ArchivedMessage, LakeBatch, OperatorAction
from ...stats.stats_service import SETTLE
from ..job_errors import LakeError, Refused
from ..params import Tell
from . import batches
from .ledger import COMMITTED, PRUNED, Ledger
from .reader import read_files

#: Rows that one transaction looks at.
CHUNK = 5_000
Archive = Callable[[tuple[int, int]], DataFrame]
"""Reads the rows with lo < id <= hi."""


@dataclass
class PrunedBatches:
    """What prune_batches() has done."""

    count: int = 0
    """Rows that were deleted, or would be in a dry run."""
    kept: int = 0
    """Dead letters of these batches that stay, because nobody has replayed or discarded them."""
    problems: list[str] = field(default_factory=list)
    """Batches that were left alone, and why."""


def prune_batches(
    ledger: Ledger,
    older_than: timedelta,
    archive: Archive,
    *,
    by: str,
    dry_run: bool,
    tell: Tell,
) -> PrunedBatches:
    """Delete the rows of every committed batch whose messages all finished longer ago than
    `older_than` (1 hour or more), if the lake has the same rows. A batch of today (UTC) stays until
    its figures are computed, and in a partitioned archive a batch with rows of a month that is not
    over so long. After an interruption, the next call goes on. `by` is for the
    OperatorAction. The ledger has to be up to date. Raises Refused, and LakeError when a file is
    not there as its commit says.
    """
    if older_than < MIN_AGE:
        raise Refused(
            "Rows are pruned 1 hour after they finished at the earliest: they stop a second "
            "delivery."
        )
    now = datetime.now(tz=zones.utc)
    done = PrunedBatches()
    aged = Q(newest_at__lt=stored(now - older_than)) | Q(newest_at=None)
    # The figures of a day are computed when it is over, from all of its rows.
    today = (now - SETTLE).replace(hour=0, minute=0, second=0, microsecond=0)
    final = Q(newest_at__lt=stored(today)) | Q(counted_at__isnull=False) | Q(newest_at=None)
    # Pruned batches return when their last dead letters are replayed or discarded.
    lake_batches = [
        batch
        for batch in ledger.batches.filter(aged, final, seq__isnull=False, pruned__lt=F("rows"))
        if batch.state == COMMITTED or _rows(batch).exclude(OPEN).exists()
    ]
    connection = connections[get_settings().database]
    if since := held_since(connection, stored(now - older_than)):
        held = {"enqueued_at__gte": since}
        lake_batches = [one for one in lake_batches if not _rows(one).filter(**held).exists()]
    _check_files(ledger, lake_batches)
    lake_batches = [
        batch for batch in lake_batches if _is_whole(ledger, batch, archive, done, dry_run)
    ]
    if dry_run:
        for batch in lake_batches:
            done.count += _rows(batch).exclude(OPEN).count()
            done.kept += _rows(batch).filter(OPEN).count()
        return done
    if lake_batches:
        limit = now - older_than
        words = f"what the lake {ledger.name} holds, finished before {limit:%Y-%m-%d %H:%M:%S}Z"
        with OperatorAction.recorded(
            "prune", by, before=stored(limit), lake=ledger.name, selection=words
        ) as action:
            _drop_months(lake_batches, stored(limit), done, action)
            for batch in lake_batches:
                _prune(batch, done, action)
                tell(f"pruned {done.count:,} rows up to id {batch.hi:,}")
    return done


def _is_whole(
    ledger: Ledger, batch: LakeBatch, archive: Archive, done: PrunedBatches, dry_run: bool
) -> bool:
    """Whether SQL has the rows that the lake has. It is no problem when others pruned rows of a
    batch that was pruned here before."""
    wrong_count = _difference(batch)
    if not wrong_count and not _has_other_rows(ledger, batch, archive):
        return True
    if batch.state == COMMITTED or not wrong_count:
        problem = wrong_count or (
            f"The batch of the ids {batch.lo + 1:,} to {batch.hi:,} is not pruned: rows of SQL are "
            f"not as the lake has them. Run the audit: it names them."
        )
        done.problems.append(problem)
        if not dry_run:
            LakeBatch.objects.filter(pk=batch.pk).update(problem=problem)
    return False


def _difference(batch: LakeBatch) -> str:
    expected = (batch.rows or 0) - batch.pruned
    found = _rows(batch).count()
    if found == expected:
        return ""
    return (
        f"The batch of the ids {batch.lo + 1:,} to {batch.hi:,} is not pruned: SQL has {found:,} "
        f"of its rows, but the lake has {expected:,}. Run the audit (`delayq prune` may have "
        f"deleted some of them)."
    )


def _has_other_rows(ledger: Ledger, batch: LakeBatch, archive: Archive) -> bool:
    """Whether SQL has a row of these ids that the lake lacks or has with other content. Before the
    first row is deleted, SQL has to have all rows of the commit, and afterwards some of them."""
    rows = archive((batch.lo, batch.hi))
    if not batch.pruned:
        digest = batches.digest_of(rows)
        return (digest.rows, str(digest.signature)) != (batch.rows, batch.signature or "0")
    files = [file for file in ledger.lake.files() if file.may_have(batch.lo, batch.hi)]
    ours = batches.hashed(rows)
    theirs = batches.hashed(read_files(ours.sparkSession, ledger.lake, files))
    return not ours.join(theirs, ["id", "hash_high", "hash_low"], "left_anti").isEmpty()


def _check_files(ledger: Ledger, lake_batches: Sequence[LakeBatch]) -> None:
    """Raise LakeError unless every file that may have rows of these batches can be opened and has
    the number of rows that its commit says."""
    for file in ledger.lake.files():
        if not any(file.may_have(batch.lo, batch.hi) for batch in lake_batches):
            continue
        path = ledger.lake.check(file)
        try:
            rows = pq.read_metadata(path).num_rows
        except (OSError, ValueError) as error:
            raise LakeError(f"{path} cannot be read: {error}. Nothing is pruned.") from error
        if rows != file.rows:
            raise LakeError(
                f"{path} has {rows:,} rows, its commit says {file.rows:,}. Nothing is pruned."
            )


def _rows(batch: LakeBatch) -> Any:
    return ArchivedMessage.objects.filter(pk__gt=batch.lo, pk__lte=batch.hi)


class _Changed(Exception):
    """SQL does not have the rows of a batch that the lake has."""


def _drop_months(
    lake_batches: Sequence[LakeBatch], limit: datetime, done: PrunedBatches, action: OperatorAction
) -> None:
    """Drop the months that were over at this instant, when few of their rows are not of these
    batches. What is not dropped is left to be deleted."""
    ids = Q()
    for lo, hi in _together(lake_batches):
        ids |= Q(pk__gt=lo, pk__lte=hi)
    goes = ids & ~OPEN
    connection = connections[get_settings().database]

    def record(rows: Any) -> int:
        """Count the rows that go for each batch, and in the record of the prune."""
        total = 0
        for batch in lake_batches:
            if count := rows.filter(pk__gt=batch.lo, pk__lte=batch.hi).count():
                ledger = LakeBatch.objects.filter(pk=batch.pk)
                # As in _delete(): others cannot prune the batch between the check and the count.
                ledger.update(pruned=F("pruned"))
                batch.refresh_from_db(using=connection.alias, fields=["pruned", "rows"])
                if _difference(batch):
                    raise _Changed
                ledger.update(pruned=F("pruned") + count, changed_at=timezone.now())
                total += count
        action.add(total)
        return total

    for month in months_before(connection, limit):
        if not is_droppable(month, goes):
            continue
        needed = needed_in(month.rows.filter(goes))
        with suppress(ArchiveBusy, _Changed):
            done.count += drop_month(connection, month, goes & ~Q(pk__in=needed), record) or 0


def _together(lake_batches: Sequence[LakeBatch]) -> Iterator[tuple[int, int]]:
    """The ids of the batches (lo < id <= hi), those that follow each other as one range."""
    last: tuple[int, int] | None = None
    for lo, hi in sorted((batch.lo, batch.hi) for batch in lake_batches):
        if last is not None and lo <= last[1]:
            last = last[0], hi
            continue
        if last is not None:
            yield last
        last = lo, hi
    if last is not None:
        yield last


def _prune(batch: LakeBatch, done: PrunedBatches, action: OperatorAction) -> None:
    """Prune one batch, in chunks."""
    at, first = batch.lo, True
    while at < batch.hi:
        pks = _rows(batch).filter(pk__gt=at).order_by("pk").values_list("pk", flat=True)
        edge = next(iter(pks[CHUNK - 1 : CHUNK]), batch.hi)
        goes = _rows(batch).filter(pk__gt=at, pk__lte=edge).exclude(OPEN)
        if not _delete(batch, goes, done, action, check=first):
            return
        at, first = edge, False
    done.kept += _rows(batch).count()
    LakeBatch.objects.filter(pk=batch.pk).update(
        state=PRUNED, problem="", changed_at=timezone.now()
    )


def _delete(
    batch: LakeBatch, goes: Any, done: PrunedBatches, action: OperatorAction, *, check: bool
) -> bool:
    """Delete one chunk and count its rows, in one transaction. False: SQL does not have the rows
    that the lake has."""
    alias = get_settings().database
    needed = still_needed(goes)
    with transaction.atomic(using=alias):
        ledger = LakeBatch.objects.filter(pk=batch.pk)
        # The write comes first, because it locks out another prune of this batch.
        ledger.update(pruned=F("pruned"))
        if check:
            batch.refresh_from_db(using=alias, fields=["pruned", "rows"])
            if problem := _difference(batch):
                done.problems.append(problem)
                return False
        count = delete_counted(goes.exclude(pk__in=needed), action)
        ledger.update(pruned=F("pruned") + count, changed_at=timezone.now())
    done.count += count
    return True
