"""Deletes old rows of the archive, in short transactions, and never an open dead letter by
accident. Where the archive is partitioned, months that are over are dropped as a whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import connections, transaction
from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import ArchiveBusy, InvalidMessage, StoreError
from ..core.times import Duration, duration_ms, epoch_us, in_words
from ..models import ArchivedMessage, Final, LakeBatch, OperatorAction, UnarchivableEntry
from ..store import get_store
from ..store.client import BATCH
from ..store.keys import Partition
from ..store.queries import Life
from ..tasks import registry
from .months import MOST_STAYING, Month, drop_month, held_since, is_droppable, months_before
from .selection import Rows, pages_by_time

#: Rows of the last hour always stay.
MIN_AGE = timedelta(hours=1)
#: Rows that one query reads.
PAGE = 5_000
#: Ids that one query names.
IDS = 500

#: Dead letters that nobody has replayed or discarded.
OPEN = Q(state=Final.DEAD, replayed_at=None, discarded_at=None)

_STANDING = ("state", "replayed_at", "discarded_at")


@dataclass(kw_only=True)
class Pruned:
    """What prune() has done so far."""

    action: OperatorAction | None = None
    """The record of it; None in a dry run. Its finished_at is null until the end."""
    count: int = 0
    """Rows that are deleted; in a dry run, that would be."""
    kept: int = 0
    """Rows that are old enough and stay: dead letters that nobody has replayed or discarded."""
    needed: int = 0
    """Rows that are old enough and stay: of exactly_once tasks whose messages Redis still has, so
    that they may be delivered again, or may have while it is away. Their rows keep them from
    running twice."""


def prune(  # noqa: PLR0913 - keyword-only, and each of them may be given
    older_than: Duration,
    *,
    state: str | None = None,
    exported: bool = False,
    whole_months: bool = False,
    dry_run: bool = False,
    by: str = "",
    progress: Callable[[Pruned], object] | None = None,
    batch: int = 1_000,
) -> Pruned:
    """Delete rows of the archive that finished longer ago than `older_than`: a timedelta or
    seconds, 1 hour or more.

    `state`: only acked, dead, cancelled or expired ones. Without it everything goes but the dead
    letters that nobody has replayed or discarded: those go only with state="dead". What the archive
    refused (UnarchivableEntry) goes by the same rules. `exported`: where rows are exported to a
    lake, those that it has not taken yet stay. The oldest go first, `batch` (1 to 10,000)
    rows in a transaction, so that to interrupt is safe.

    A month of a partitioned archive of which few rows stay is dropped at once. With `whole_months`,
    rows of months that are not over yet stay, to go with them. `dry_run` only counts. `by` is for
    the OperatorAction. `progress(pruned)` is called first and after each transaction. Raises
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
    rows: Rows = ArchivedMessage.objects.filter(finished_at__lt=before)
    last = last_exported() if exported else None
    rows = rows if last is None else rows.filter(pk__lte=last)
    connection = connections[get_settings().database]
    if whole_months and (since := held_since(connection, before)):
        rows = rows.filter(enqueued_at__lt=since)
    if dry_run:
        _report(Pruned(), progress)
        return _prune(Pruned(), rows, before, state, batch, progress)
    age_words = in_words(age.total_seconds())
    words = f"{state or 'all but open dead letters'}, finished more than {age_words} ago"
    goes = Q(finished_at__lt=before) & (~OPEN if state is None else Q(state=state))
    goes = goes if last is None else goes & Q(pk__lte=last)
    with OperatorAction.recorded("prune", by, before=before, selection=words) as action:
        done = Pruned(action=action)
        _report(done, progress)
        for month in months_before(connection, before):
            _drop(month, goes, lambda: done, progress)
        return _prune(done, rows, before, state, batch, progress)


def prune_months(
    ages: Mapping[str, timedelta], *, by: str, progress: Callable[[Pruned], object]
) -> None:
    """Drop the months of a partitioned archive of which few rows stay, when all states go by their
    own ages. Those that no lake has yet stay, where there is one. Does nothing in an archive that
    is a plain table. `progress` as prune() has it."""
    now, goes = timezone.now(), Q()
    for state, age in ages.items():
        goes |= Q(state=state, finished_at__lt=now - age)
    if (last := last_exported()) is not None:
        goes &= Q(pk__lte=last)
    before, done = now - min(ages.values()), Pruned()
    with ExitStack() as stack:

        def recorded() -> Pruned:
            """Recorded from the first month on."""
            if done.action is None:
                words = "months that are over, of which each state has its age"
                record = OperatorAction.recorded("prune", by, before=before, selection=words)
                done.action = stack.enter_context(record)
            return done

        for month in months_before(connections[get_settings().database], before):
            _drop(month, goes, recorded, progress)


def last_exported() -> int | None:
    """The id up to which a lake has the rows of the archive; of several lakes, the one that is
    ahead. None when no row was ever exported."""
    batches = LakeBatch.objects.filter(version__isnull=False)
    last: int | None = batches.aggregate(last=Max("hi"))["last"]
    return last


def delete_counted(rows: QuerySet[Any], action: OperatorAction) -> int:
    """Delete rows of a table without others that refer to it, and count them in the record of the
    prune: in one transaction. Returns how many."""
    with transaction.atomic(using=rows.db):
        _, deleted = rows.delete()
        count: int = deleted.get(rows.model._meta.label, 0)
        action.add(count)
    return count


def _drop(
    month: Month,
    goes: Q,
    recorded: Callable[[], Pruned],
    progress: Callable[[Pruned], object] | None,
) -> None:
    """Drop the month when few of its rows stay. When others hold the table for long, its rows are
    left to be deleted."""
    if not is_droppable(month, goes):
        return
    needed = needed_in(month.rows.filter(goes))
    if len(needed) > MOST_STAYING:
        return
    done = recorded()
    action = done.action
    assert action is not None

    def count(rows: Rows) -> int:
        found = rows.count()
        action.add(found)
        return found

    connection = connections[get_settings().database]
    try:
        dropped = drop_month(connection, month, goes & ~Q(pk__in=needed), count) or 0
    except ArchiveBusy:
        return
    done.count += dropped
    action.count += dropped
    _report(done, progress)


def needed_in(rows: QuerySet[ArchivedMessage]) -> set[int]:
    """still_needed() of many rows, some at a time."""
    needed: set[int] = set()
    if once := _exactly_once_tasks():
        pks = rows.filter(task__in=once).order_by("pk").values_list("pk", flat=True)
        page = list(pks[:PAGE])
        while page:
            needed |= still_needed(rows.filter(pk__gte=page[0], pk__lte=page[-1]))
            page = list(pks.filter(pk__gt=page[-1])[:PAGE])
    return needed


def _exactly_once_tasks() -> list[str]:
    return [name for name, task in registry.by_name.items() if task.options.exactly_once]


def _prune(
    done: Pruned,
    old: Rows,
    before: datetime,
    state: str | None,
    batch: int,
    progress: Callable[[Pruned], object] | None,
) -> Pruned:
    """Delete what prune() describes, or only count it when there is no record to count it in."""
    rows = ArchivedMessage.objects.all()
    for page in pages_by_time(old, _STANDING, PAGE):
        going = [pk for _, pk, *standing in page if _may_go(done, state, *standing)]
        needed: set[int] = set()
        for ids in chunked(going, IDS):
            needed |= still_needed(rows.filter(pk__in=ids))
        done.needed += len(needed)
        for pks in chunked([pk for pk in going if pk not in needed], batch):
            _delete(done, rows, pks)
            _report(done, progress)
    aside = UnarchivableEntry.objects.all()
    states = aside.filter(created_at__lt=before).values_list("pk", "state")
    _delete(done, aside, [pk for pk, its_state in states if _may_go(done, state, its_state)])
    return done


def _report(done: Pruned, progress: Callable[[Pruned], object] | None) -> None:
    if progress:
        progress(replace(done))


def _may_go(
    done: Pruned,
    wanted: str | None,
    state: str,
    replayed_at: datetime | None = None,
    discarded_at: datetime | None = None,
) -> bool:
    """Whether an old row is deleted. Counts the open dead letters that stay."""
    if wanted:
        return state == wanted
    is_open = state == Final.DEAD and not replayed_at and not discarded_at
    done.kept += is_open
    return not is_open


def _delete(done: Pruned, rows: QuerySet[Any], pks: Sequence[int]) -> None:
    """Delete these rows in one transaction; in a dry run only count them."""
    count = len(pks)
    if done.action is not None and pks:
        count = delete_counted(rows.filter(pk__in=pks), done.action)
        done.action.count += count
    done.count += count


def still_needed(rows: QuerySet[ArchivedMessage]) -> set[int]:
    """The ids of those rows that keep a message from running twice: of exactly_once tasks, whose
    worker died before it could say that they ran, so that Redis still has them. All rows of such
    tasks while Redis is away."""
    once = _exactly_once_tasks()
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
