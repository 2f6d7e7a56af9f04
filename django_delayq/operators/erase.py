"""Erases a person's data wherever it is: in the queue, the outbox, the archive, the texts of
operators and the lake.

A pass takes back what waits, waits until the archiver has taken what has ended, and then erases
rows. So nothing slips from the queue into the archive behind it. It is repeated until a pass finds
nothing, and done again after a kill it goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Q

from ..archive import unarchivable
from ..archive.archiver import Archiver
from ..archive.erasure import BATCH, OwnedRow, Person, erase_rows, owned_rows
from ..archive.selection import newest_id
from ..client import changes
from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import MessageNotFound, MessageRunning, NotWaiting
from ..core.message import stamp_us_of, task_code_of
from ..core.service import Sleeper
from ..core.times import Duration, duration_ms
from ..models import (
    BulkMessage,
    BulkStatus,
    LakeBatch,
    OperatorAction,
    OutboxMessage,
    UnarchivableEntry,
)
from ..outbox.outbox import record_of
from ..store import finished, get_store
from ..store.keys import Partition
from ..store.queries import Life
from ..tasks import registry
from ..tasks.naming import kept_task_name
from ..tasks.options import ChangeOptions
from .erased_texts import TEXTS, gaps_of, gaps_of_keys, with_gaps
from .operations import clean

#: Seconds that the erasure waits for running tasks, unless the caller says otherwise.
WAIT = 60.0
#: Seconds between two passes that wait for something.
PACE = 0.5
#: Ids of the archive below the newest one that each further pass looks through again: a transaction
#: that was open may commit rows with smaller ids.
OVERLAP = 100_000
#: Ids that a report names for each place.
SAMPLE = 5
#: Passes after which, when the time is over too, what still comes is left.
MOST_PASSES = 5

_AT_ONCE = ChangeOptions(after_commit=False, on_redis_error="raise")


@dataclass(kw_only=True)
class Place:
    """What was found in one place."""

    name: str
    """queue, ended (in a dry run), outbox, archive, unarchivable, texts or lake. A message may be
    in several: one that is cancelled also becomes a row of the archive."""
    count: int = 0
    """Messages, rows or texts that are erased; in a dry run, that would be."""
    sample: list[str] = field(default_factory=list)
    """Ids of the first of them, so that somebody may look at them before."""


class LakeErased(NamedTuple):
    """What an erasure did in the lake."""

    rows: int
    sample: Sequence[str]
    """Ids of the first of them."""
    left: Sequence[str] = ()
    """The processes that have to end before the erasure is complete, in words."""
    notes: Sequence[str] = ()
    """What else to know, in words."""


EraseLake = Callable[[Person, bool, bool], LakeErased]
"""Erases a person's rows of a lake. Its arguments: the person, whether the rows are deleted, and
whether it only counts."""


@dataclass(kw_only=True)
class Erased:
    """What erase() has done so far, or in a dry run what it would do."""

    action: OperatorAction | None = None
    """The record of it, without the value; None in a dry run. Its finished_at is null until the
    end."""
    places: dict[str, Place] = field(default_factory=dict)
    """The hits by the name of the place; places without hits are left out."""
    left: list[str] = field(default_factory=list)
    """What is not erased yet, and why, in words. When it is not empty, erase again later."""
    notes: list[str] = field(default_factory=list)
    """What no erasure reaches, in words."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left that a further erasure would reach."""
        return not self.left

    def __str__(self) -> str:
        parts = [f"{place.name} {place.count:,}" for place in self.places.values() if place.count]
        return ", ".join(parts) or "nothing found"


def erase(  # noqa: PLR0913 - keyword-only, and each of them may be given
    person: Person,
    *,
    delete: bool = False,
    dry_run: bool = False,
    by: str = "",
    reason: str = "",
    wait: Duration = WAIT,
    lake: EraseLake | None = None,
    progress: Callable[[Erased], object] = lambda so_far: None,
) -> Erased:
    """Erase the data of a person; see Person for which messages are meant.

    Messages that wait are cancelled. Rows of the archive lose their key, arguments, headers, errors
    and results; with `delete` they are deleted. Redis loses their results, records of operators
    what they say about these messages. A message that runs cannot be erased before it has ended:
    this waits for it, `wait` (a timedelta or seconds, 60) at most, and then reports it as left.
    `lake` erases the rows of a lake: LakeErasure("s3://shop/lake").

    `dry_run` only counts, and gives the first ids of each place. Interrupted, or killed, it goes on
    when it is called again with the same person. The record (OperatorAction) has the counts and a
    keyed hash of the value, never the value. `progress` is called after each step. Raises
    InvalidMessage, StoreUnavailable, ArchiveUnavailable and the database's errors.
    """
    until = time.monotonic() + duration_ms(wait, "wait") / 1000
    if dry_run:
        return _Erasure(person, Erased(), delete, progress).foresee(lake)
    words = f"{'deleted' if delete else 'redacted'}: {person.in_words()}"
    with OperatorAction.recorded("erase", by, clean(reason), selection=words) as action:
        erasure = _Erasure(person, Erased(action=action), delete, progress)
        done = erasure.run(until, lake)
        OperatorAction.objects.filter(pk=action.pk).update(selection=f"{words}: {done}"[:2_000])
        action.refresh_from_db()
    return done


class _Erasure:
    """One call of erase()."""

    def __init__(
        self, person: Person, done: Erased, delete: bool, progress: Callable[[Erased], object]
    ) -> None:
        self._person, self._done, self._delete = person, done, delete
        self._progress = progress
        self._store = get_store()
        self._archiver = Archiver(self._store, f"erase-{os.urandom(6).hex()}")
        self._met: dict[str, set[Any]] = {}
        """What was counted in each place: passes meet it again."""
        self._lives: dict[Life, str] = {}
        """Messages that this process has seen before their rows, with their topics. Their rows are
        the person's also where REDACT has taken the argument out of them."""
        self._unreadable: set[bytes] = set()
        self._waits_for: dict[str, set[Any]] = {}
        """What could not be erased in this pass, by its name."""
        self._busy: set[int] = set()
        """Bulk operations that name the person and have not ended."""

    def run(self, until: float, lake: EraseLake | None) -> Erased:
        """Pass after pass, until one finds nothing or the time is over; then the lake."""
        after = passes = 0
        while True:
            newest, before, self._waits_for = newest_id(), self._waits_for, {}
            if not self._pass(after):
                break
            passes += 1
            if time.monotonic() >= until:
                if passes >= MOST_PASSES and not self._waits_for:
                    self._wait_for("coming", range(passes))
                if passes >= MOST_PASSES or (self._waits_for and self._waits_for == before):
                    break
            after = max(0, newest - OVERLAP)
            if self._waits_for:
                Sleeper().wait(PACE)
        self._erase_without_rows()
        self._erase_texts(gaps_of(self._person))
        return self._end(lake, dry_run=False)

    def foresee(self, lake: EraseLake | None) -> Erased:
        """Count, and change nothing."""
        for partition in self._partitions():
            for life, raw in self._live(partition):
                self._meet("queue", life, f"{life.id.hex()} {self._task(partition, raw)}")
            for life in self._ended(partition):
                self._meet("ended", life, life.id.hex())
        for row in self._outbox():
            self._meet("outbox", row.pk, row.message_id.hex)
        for rows in owned_rows(self._person, lives=list(self._lives)):
            for owned in rows:
                self._meet("archive", owned.pk, str(owned.pk))
            self._progress(self._done)
        for entry in self._unarchivable():
            self._meet("unarchivable", entry.pk, str(entry.pk))
        return self._end(lake, dry_run=True)

    # One pass

    def _pass(self, after: int) -> bool:
        """Erase what is there now. Returns whether there was anything."""
        found = False
        for partition in self._partitions():
            for life, raw in self._live(partition):
                found = True
                self._take_back(partition, life, self._task(partition, raw))
        ended = [life for partition in self._partitions() for life in self._ended(partition)]
        if ended:
            self._wait_for("ended", ended)
            self._archive()
        for row in self._outbox():
            found = True
            with suppress(NotWaiting):
                changes.cancel(row.topic, None, row.message_id, _AT_ONCE)
            self._meet("outbox", row.pk, row.message_id.hex)
            # The archiver removes a row that Redis knows.
            if OutboxMessage.objects.filter(pk=row.pk).exists():
                self._wait_for("outbox", [row.pk])
        for rows in owned_rows(self._person, after, list(self._lives)):
            found = True
            self._erase_rows(rows)
        for entry in self._unarchivable():
            found = True
            self._erase_entry(entry)
        return found or bool(ended)

    def _take_back(self, partition: Partition, life: Life, task: str) -> None:
        try:
            changes.cancel(partition.topic, None, life.id, _AT_ONCE)
        except MessageRunning:
            self._wait_for("running", [life])
        except MessageNotFound:  # it has ended since it was read
            return
        else:
            self._meet("queue", life, f"{life.id.hex()} {task}")

    def _archive(self) -> None:
        """Archive what has ended, as the archiver of the project would."""
        before = -1
        while self._archiver.archived > before:
            before = self._archiver.archived
            Sleeper().wait(min(PACE, self._archiver.run_once()))

    def _erase_rows(self, rows: Sequence[OwnedRow]) -> None:
        """What the rows lead to comes first: a kill leaves the rows, which lead to it again."""
        for row in rows:
            self._store.reports.forget(row.topic, [row.message_id.bytes])
        keys = {row.key for row in rows if row.key}
        self._erase_from_lists(Q(message_id__in=[row.message_id for row in rows]))
        self._erase_from_lists(Q(key__in=keys))  # a message that was moved has another id
        self._erase_texts(gaps_of_keys(keys))
        assert self._done.action
        changed = erase_rows(rows, self._done.action, delete=self._delete)
        for row in rows:
            if row.pk in changed:
                self._meet("archive", row.pk, str(row.pk))
            else:
                self._wait_for("needed", [row.pk])

    def _erase_entry(self, entry: UnarchivableEntry) -> None:
        assert self._done.action
        with transaction.atomic(using=get_settings().database):
            self._done.action.add(1)
            if self._delete:
                entry.delete(using=get_settings().database)
            else:
                unarchivable.redact(entry)
        self._meet("unarchivable", entry.pk, str(entry.pk))

    def _erase_texts(self, gaps: Mapping[str, str]) -> None:
        """Put these in place of what records of operators say. What a bulk operation says stays
        until it has ended: it goes by it."""
        for model, columns in TEXTS.items():
            rows = model._default_manager.all()
            for needles in chunked(list(gaps), 20):
                places = [
                    Q(**{f"{name}__contains": needle}) for needle in needles for name in columns
                ]
                for row in rows.filter(reduce(or_, places)):
                    texts = {name: getattr(row, name) for name in columns}
                    changed = {name: with_gaps(text, gaps) for name, text in texts.items()}
                    if changed == texts:
                        continue
                    if getattr(row, "status", "") in (BulkStatus.WAITING, BulkStatus.RUNNING):
                        self._busy.add(row.pk)
                        continue
                    rows.filter(pk=row.pk).update(**changed)
                    place = (model.__name__, row.pk)
                    self._meet("texts", place, "{} {}".format(*place))

    def _erase_without_rows(self) -> None:
        """Erase what is known of messages that ARCHIVE keeps no rows of."""
        for life, topic in self._lives.items():
            self._store.reports.forget(topic, [life.id])
        for lives in chunked(self._lives, BATCH):
            self._erase_from_lists(Q(message_id__in=[UUID(bytes=life.id) for life in lives]))
        if self._person.key_prefix and not self._person.argument:
            self._erase_from_lists(Q(key__startswith=self._person.key_prefix))

    def _erase_from_lists(self, which: Q) -> None:
        """The lists of bulk operations on waiting messages. An operation that goes on does not need
        what it loses by that: the messages themselves have their keys."""
        listed = BulkMessage.objects.filter(which)
        if self._delete:
            listed.delete()
        else:
            listed.exclude(key="").update(key="")

    def _in_lake(self, lake: EraseLake, dry_run: bool) -> None:
        erased = lake(self._person, self._delete, dry_run)
        if erased.rows:
            self._done.places["lake"] = Place(
                name="lake", count=erased.rows, sample=list(erased.sample)[:SAMPLE]
            )
            if self._done.action:
                self._done.action.add(erased.rows)
        self._done.left += erased.left
        self._done.notes += erased.notes
        self._progress(self._done)

    # The data of the person

    def _partitions(self) -> Iterator[Partition]:
        for partition in self._store.topics.used_partitions():
            if self._person.topic in ("", partition.topic):
                yield partition

    def _live(self, partition: Partition) -> Iterator[tuple[Life, bytes]]:
        """The person's messages in Redis that have not ended."""
        for page in self._store.queries.records(partition):
            for message_id, raw in page.items():
                if self._owns(partition, message_id, raw):
                    life = Life(message_id, stamp_us_of(raw) or 0)
                    self._lives[life] = partition.topic
                    yield life, raw

    def _ended(self, partition: Partition) -> Iterator[Life]:
        """The person's messages that have ended and are not archived."""
        for page in finished.unarchived(self._store, partition):
            for entry in page:
                if self._owns(partition, entry.id, entry.record):
                    life = Life(entry.id, stamp_us_of(entry.record) or 0)
                    self._lives[life] = partition.topic
                    yield life

    def _owns(self, partition: Partition, message_id: bytes, raw: bytes) -> bool:
        task = self._task(partition, raw)
        owned = self._person.owns_record(partition.topic, task, message_id, raw)
        if owned is None:
            self._unreadable.add(raw[:14])
        return bool(owned)

    def _task(self, partition: Partition, raw: bytes) -> str:
        code = task_code_of(raw)
        return kept_task_name(partition, code) if len(code) == 4 else ""

    def _outbox(self) -> Iterator[OutboxMessage]:
        """The person's rows of the outbox, also of messages that have ended."""
        after, rows = 0, OutboxMessage.objects.order_by("pk")
        while page := list(rows.filter(pk__gt=after)[:BATCH]):
            after = page[-1].pk
            for row in page:
                identity = row.message_id.bytes
                if row.record and self._person.owns_record(
                    row.topic, row.task, identity, record_of(row)
                ):
                    self._lives[Life(row.message_id.bytes, row.enqueued_at_us)] = row.topic
                    yield row

    def _unarchivable(self) -> Iterator[UnarchivableEntry]:
        for row in UnarchivableEntry.objects.order_by("pk"):
            shown = unarchivable.entry_view(row)
            key, body = shown.body.key or "", shown.body
            if self._person.owns(row.topic, shown.task, key, body.args, body.kwargs):
                yield row

    # The report

    def _meet(self, name: str, what: Any, words: str) -> None:
        """Count it once, however often passes meet it."""
        met = self._met.setdefault(name, set())
        if what in met:
            return
        met.add(what)
        place = self._done.places.setdefault(name, Place(name=name))
        place.count += 1
        if len(place.sample) < SAMPLE:
            place.sample.append(words)
        self._progress(self._done)

    def _wait_for(self, name: str, what: Iterable[Any]) -> None:
        self._waits_for.setdefault(name, set()).update(what)

    def _end(self, lake: EraseLake | None, *, dry_run: bool) -> Erased:
        """The lake comes last: its rows are equal to those of SQL, then. Returns the report."""
        if lake:
            self._in_lake(lake, dry_run)
        if self._busy:
            self._wait_for("bulk", self._busy)
        for name, what in self._waits_for.items():
            self._done.left.append(_LEFT[name].format(f"{len(what):,}"))
        if lake is None:
            lakes = LakeBatch.objects.order_by("table_id").values_list("table_id", flat=True)
            self._done.left += [
                f"The lake (table {table}) was not looked through: give its URI."
                for table in lakes.distinct()
            ]
        notes = [*_NOTES]
        if self._unreadable:
            notes.append(f"{len(self._unreadable):,} records in Redis cannot be read.")
        hides = any(task.definition.options.secret for task in registry.by_name.values())
        if (get_settings().redact or hides) and self._person.argument:
            notes.append(
                'DELAYQ["REDACT"] and `secret` hide arguments before they are archived: rows that '
                "have lost this argument were not recognised. Look for them by a key prefix."
            )
        self._done.notes += notes
        return self._done


#: What may be left, by the name of what the erasure waits for.
_LEFT = {
    "running": "{} messages run. They can be erased when they have ended.",
    "ended": "{} messages have ended and are not archived yet.",
    "outbox": "{} rows of the outbox wait until their messages are archived.",
    "needed": "{} rows of exactly_once tasks stay until their messages have left Redis.",
    "bulk": "{} bulk operations that have not ended name the person.",
    "coming": "Messages of the person kept coming in {} passes.",
}
_NOTES = (
    "Not reached: backups, replicas of files, log files, and what tasks have stored elsewhere.",
    "The id of a message with a key is a hash of the key; who knows the key can compute it.",
)
