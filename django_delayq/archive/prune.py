"""Deletes old rows of the archive, in short transactions, and never an open dead letter by
accident."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage, StoreError
from ..core.times import Duration, duration_ms, epoch_us, in_words
from ..models import ArchivedMessage, Final, OperatorAction, UnarchivableEntry
from ..store import get_store
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.queries import Life
from ..tasks import registry

#: Rows of the last hour always stay.
MIN_AGE = timedelta(hours=1)
#: Rows that one query reads.
PAGE = 5_000
#: Ids that one query names.
IDS = 500


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What prune() has done so far."""

    action: OperatorAction | None
    """The record of it; None in a dry run. Its finished_at is null until the end."""
    count: int
    """Rows that are deleted; in a dry run, that would be."""
    kept: int
    """Rows that are old enough and stay: dead letters that nobody has replayed or discarded."""
    needed: int = 0
    """Rows that are old enough and stay: of exactly_once tasks whose messages Redis still has, so
    that they may be delivered again, or may have while it is away. Their rows keep them from
    running twice."""


def prune(
    older_than: Duration,
    *,
    state: str | None = None,
    dry_run: bool = False,
    by: str = "",
    progress: Callable[[Pruned], object] | None = None,
    batch: int = 1_000,
) -> Pruned:
    """Delete rows of the archive that finished longer ago than `older_than`: a timedelta or
    seconds, 1 hour or more.

    `state`: only acked, dead, cancelled or expired ones. Without it everything goes but the dead
    letters that nobody has replayed or discarded: those go only with state="dead". What the archive
    refused (UnarchivableEntry) goes by the same rules. The oldest go first, `batch` (1 to 10,000)
    rows in a transaction, so that to interrupt is safe. `dry_run` only counts. `by` is for the
    OperatorAction. `progress(pruned)` is called first and after each transaction. Raises
    InvalidMessage.
    """
    age = timedelta(milliseconds=duration_ms(older_than, "older_than"))
    if age < MIN_AGE:
        raise InvalidMessage(
            "older_than is at least 1 hour: younger rows are read by those who just wrote them."
        )
    before = timezone.now() - age
    if state is not None and state not in Final.values:
        raise InvalidMessage(f"state is {state!r}: use one of {', '.join(Final.values)}.")
    if isinstance(batch, bool) or not isinstance(batch, int) or not 1 <= batch <= 10_000:
        raise InvalidMessage(f"batch is a whole number from 1 to 10,000, not {batch!r}.")
    work = _Prune(before, state, progress)
    if dry_run:
        return work.run(batch)
    age_words = in_words(age.total_seconds())
    words = f"{state or 'all but open dead letters'}, finished more than {age_words} ago"
    with OperatorAction.recorded("prune", by, before=before, selection=words) as action:
        work.action = action
        return work.run(batch)


def delete_counted(rows: QuerySet[Any], action: OperatorAction) -> int:
    """Delete rows of a table without others that refer to it, and count them in the record of the
    prune: in one transaction. Returns how many."""
    with transaction.atomic(using=rows.db):
        _, deleted = rows.delete()
        count: int = deleted.get(rows.model._meta.label, 0)
        action.add(count)
    return count


class _Prune:
    """One call of prune()."""

    def __init__(
        self, before: datetime, state: str | None, progress: Callable[[Pruned], object] | None
    ) -> None:
        self._before, self._state, self._progress = before, state, progress
        self._alias = get_settings().database
        self.action: OperatorAction | None = None
        """None in a dry run."""
        self._count = self._kept = self._needed = 0

    def run(self, batch: int) -> Pruned:
        """Delete, or only count."""
        self._tell()
        rows = ArchivedMessage.objects.using(self._alias)
        for page in self._pages():
            needed: set[int] = set()
            once = any(task.options.exactly_once for task in registry.by_name.values())
            for ids in chunked(page, IDS) if once else ():
                needed |= still_needed(rows.filter(pk__in=ids))
            self._needed += len(needed)
            for pks in chunked([pk for pk in page if pk not in needed], batch):
                self._count += self._delete(ArchivedMessage, pks)
                self._tell()
        aside = UnarchivableEntry.objects.using(self._alias).filter(created_at__lt=self._before)
        states = aside.values_list("pk", "state")
        pks = [pk for pk, state in states if self._goes(state, None, None)]
        self._count += self._delete(UnarchivableEntry, pks)
        return self._so_far()

    def _pages(self) -> Iterator[Sequence[int]]:
        """The ids of the rows to delete. They are always read along the index of finished_at, so
        each query is short, also one for a state that is rare."""
        rows = ArchivedMessage.objects.using(self._alias).filter(finished_at__lt=self._before)
        columns = rows.order_by("finished_at", "pk").values_list(
            "pk", "finished_at", "state", "replayed_at", "discarded_at"
        )
        page: list[Any] = list(columns[:PAGE])
        while page:
            yield [pk for pk, _, *standing in page if self._goes(*standing)]
            pk, finished_at = page[-1][:2]
            further = Q(finished_at__gt=finished_at) | Q(pk__gt=pk)
            page = (
                list(columns.filter(further, finished_at__gte=finished_at)[:PAGE])
                if len(page) == PAGE
                else []
            )

    def _goes(
        self, state: str, replayed_at: datetime | None, discarded_at: datetime | None
    ) -> bool:
        if self._state:
            return state == self._state
        is_open = state == Final.DEAD and not replayed_at and not discarded_at
        self._kept += is_open
        return not is_open

    def _delete(self, model: type[ArchivedMessage | UnarchivableEntry], pks: Sequence[int]) -> int:
        if self.action is None or not pks:
            return len(pks)
        count = delete_counted(model.objects.using(self._alias).filter(pk__in=pks), self.action)
        self.action.count += count
        return count

    def _tell(self) -> None:
        if self._progress:
            self._progress(self._so_far())

    def _so_far(self) -> Pruned:
        return Pruned(action=self.action, count=self._count, kept=self._kept, needed=self._needed)


def still_needed(rows: QuerySet[ArchivedMessage]) -> set[int]:
    """The ids of those rows that keep a message from running twice: of exactly_once tasks, whose
    worker died before it could say that they ran, so that Redis still has them. All rows of such
    tasks while Redis is away."""
    once = [name for name, task in registry.by_name.items() if task.options.exactly_once]
    stamps: dict[Partition, list[tuple[int, Life]]] = defaultdict(list)
    columns = ("pk", "topic", "partition", "message_id", "enqueued_at")
    for pk, topic, number, message_id, enqueued_at in rows.filter(task__in=once).values_list(
        *columns
    ):
        stamps[Partition(topic, number)].append((pk, Life(message_id.bytes, epoch_us(enqueued_at))))
    needed: set[int] = set()
    for partition, asked in stamps.items():
        for batch in chunked(asked, BATCH):
            try:
                words = get_store().queries.durable_status(partition, [stamp for _, stamp in batch])
            except StoreError:
                words = ["LIVE"] * len(batch)
            needed |= {pk for (pk, _), word in zip(batch, words, strict=True) if word == "LIVE"}
    return needed
