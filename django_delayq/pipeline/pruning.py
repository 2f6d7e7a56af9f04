"""Deletes from SQL what a verified batch of the lake holds, in short transactions, and never an open dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any

import pyarrow.parquet as pq
from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from ..conf import get_settings
from ..models import ArchivedMessage, Final, LakeBatch, OperatorAction
from ..prune import MIN_AGE
from .errors import LakeError, Refused
from .ledger import COMMITTED, PRUNED, Ledger, stored

#: Ids that one transaction looks at.
CHUNK = 5_000
#: Dead letters that nobody has replayed or discarded.
OPEN = Q(state=Final.DEAD, replayed_at=None, discarded_at=None)


@dataclass
class Pruned:
    """What prune() has done."""

    action: OperatorAction | None = None
    """The record of it; None when there was nothing to do, and in a dry run."""
    count: int = 0
    """Rows that are deleted; in a dry run, that would be."""
    kept: int = 0
    """Dead letters of these batches that stay: nobody has replayed or discarded them."""
    problems: list[str] = field(default_factory=list)
    """Batches that were left alone, and why."""


def prune(
    ledger: Ledger, older_than: timedelta, *, by: str = "", dry_run: bool = False, tell: Callable[[str], object] = bool
) -> Pruned:
    """Delete the rows of every batch that is committed and finished as a whole longer ago than `older_than` (1 hour or
    more), if SQL has as many as the lake. Interrupted, it goes on when it is called again. `by` is for the
    OperatorAction. The ledger has to follow the lake. Raises Refused, and LakeError when a file is not there as it was.
    """
    if older_than < MIN_AGE:
        raise Refused("Rows are pruned 1 hour after they finished at the earliest: they stop a second delivery.")
    before = datetime.now(tz=zones.utc) - older_than
    done = Pruned()
    batches = list(_old(ledger, stored(before)))
    _check_files(ledger, batches)
    batches = [batch for batch in batches if _is_whole(batch, done, dry_run)]
    if dry_run:
        for batch in batches:
            done.count += _rows(batch).exclude(OPEN).count()
            done.kept += _rows(batch).filter(OPEN).count()
        return done
    if batches:
        work = _Prune(done, by, f"what the lake {ledger.name} holds, finished before {before:%Y-%m-%d %H:%M:%S}Z")
        for batch in batches:
            work.prune(batch)
            tell(f"pruned {done.count:,} rows up to id {batch.hi:,}")
        work.end()
    return done


def _old(ledger: Ledger, before: datetime) -> Iterator[LakeBatch]:
    """Committed batches that are old enough; of the pruned ones those whose dead letters are dealt with by now."""
    aged = Q(newest_at__lt=before) | Q(newest_at=None)
    for batch in ledger.batches.filter(aged, seq__isnull=False, pruned__lt=F("rows")):
        if batch.state == COMMITTED or _rows(batch).exclude(OPEN).exists():
            yield batch


def _is_whole(batch: LakeBatch, done: Pruned, dry_run: bool) -> bool:
    """Whether SQL has as many rows as the lake. What others pruned of a batch that we pruned already is no problem."""
    if not (problem := _difference(batch)):
        return True
    if batch.state == COMMITTED:
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
        f"The batch of the ids {batch.lo + 1:,} to {batch.hi:,} is not pruned: SQL has {found:,} of its rows, and "
        f"should have {expected:,} by the lake. Run the audit (delayq_prune may have deleted some of them)."
    )


def _check_files(ledger: Ledger, batches: Sequence[LakeBatch]) -> None:
    """Raise LakeError unless every file that may have rows of these batches can be opened and has its rows."""
    for file in ledger.lake.files():
        if not any(file.lowest <= batch.hi and (file.highest > batch.lo or not file.highest) for batch in batches):
            continue
        path = ledger.lake.check(file)
        try:
            rows = pq.read_metadata(path).num_rows
        except (OSError, ValueError) as error:
            raise LakeError(f"{path} cannot be read: {error}. Nothing is pruned.") from error
        if rows != file.rows:
            raise LakeError(f"{path} has {rows:,} rows, its commit says {file.rows:,}. Nothing is pruned.")


def _rows(batch: LakeBatch) -> Any:
    return ArchivedMessage.objects.filter(pk__gt=batch.lo, pk__lte=batch.hi)


class _Prune:
    """One call of prune()."""

    def __init__(self, done: Pruned, by: str, selection: str) -> None:
        self._done = done
        self._alias = get_settings().database
        self._action = OperatorAction(action="prune", operator=by[:150], selection=selection)
        self._action.save(using=self._alias)
        done.action = self._action

    def prune(self, batch: LakeBatch) -> None:
        """One batch, in chunks."""
        at, first = batch.lo, True
        while at < batch.hi:
            pks = _rows(batch).filter(pk__gt=at).order_by("pk").values_list("pk", flat=True)
            edge = next(iter(pks[CHUNK - 1 : CHUNK]), batch.hi)
            if not self._delete(batch, (at, edge), check=first):
                return
            at, first = edge, False
        self._done.kept += _rows(batch).count()
        LakeBatch.objects.filter(pk=batch.pk).update(state=PRUNED, problem="", changed_at=timezone.now())

    def _delete(self, batch: LakeBatch, ids: tuple[int, int], *, check: bool) -> bool:
        """One chunk, and how many it were, in one transaction. False: SQL has not the rows that the lake has."""
        with transaction.atomic(using=self._alias):
            ledger = LakeBatch.objects.filter(pk=batch.pk)
            ledger.update(pruned=F("pruned"))  # a write first: it locks out another prune of this batch
            if check:
                batch.refresh_from_db(fields=["pruned", "rows"])
                if problem := _difference(batch):
                    self._done.problems.append(problem)
                    return False
            goes = _rows(batch).filter(pk__gt=ids[0], pk__lte=ids[1]).exclude(OPEN)
            _, deleted = goes.delete()
            count: int = deleted.get(ArchivedMessage._meta.label, 0)
            ledger.update(pruned=F("pruned") + count, changed_at=timezone.now())
            actions = OperatorAction.objects.using(self._alias).filter(pk=self._action.pk)
            actions.update(count=F("count") + count)
        self._done.count += count
        return True

    def end(self) -> None:
        """Nothing is left to do."""
        self._action.finished_at = timezone.now()
        self._action.save(using=self._alias, update_fields=["finished_at"])
