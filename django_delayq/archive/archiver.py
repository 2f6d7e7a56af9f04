"""Moves finished messages from Redis into the archive: read by consumer group, insert, commit, and
only then remove."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from django.db import (
    DataError,
    Error,
    IntegrityError,
    InternalError,
    NotSupportedError,
    connections,
    transaction,
)  # fmt: skip
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.conf import get_settings
from ..core.connections import renew
from ..core.database import can_copy, may_pass
from ..core.exceptions import ArchiveUnavailable, DelayQError
from ..core.message import new_id
from ..core.service import Service
from ..store.entries import Entry
from ..store.finished import FinishedStream, lengths
from ..store.keys import Partition
from ..store.store import RedisStore
from . import archive_rows, closing, copying, unarchivable
from .archive_rows import RowValues, to_archive

logger = logging.getLogger("delayq.worker")

#: Seconds between two rounds, so that rows are inserted soon, but not one by one.
GATHER = 0.2
#: Seconds between two rounds without a hint. In a worker the settler gives a hint when messages
#: have ended.
IDLE = 15.0
#: While tasks run, the archiver rests four times as long as it has worked. So it takes a fifth of
#: the interpreter's time. It catches up when the tasks are done, or when the stream is half full.
REST = 4.0
#: Batches in one transaction while there is a backlog. A transaction costs as much as 100 rows.
BATCHES = 4
#: Transactions of a partition with a backlog in one round: other partitions wait for no more.
ROUND = 4
#: Failures in a row of the same batch, with a database that answers, before the archiver searches
#: for the bad entry.
PATIENCE = 3
#: Seconds until the next search for entries that dead archivers have left, when one found none.
TAKE_OVER_INTERVAL = 5.0
#: Seconds after which a new topic is noticed.
PARTITIONS_REFRESH = 10.0


class Portion(NamedTuple):
    """What one transaction archives."""

    entries: Sequence[Entry]
    rows: Sequence[RowValues] | None = None
    """Of the entries that are kept, see quickest_rows(); None when they have yet to be made."""


class Archiver(Service):
    """Serves all partitions of all topics that have the prefix."""

    name = "archiver"

    def __init__(
        self,
        store: RedisStore,
        consumer: str,
        *,
        tasks_run: Callable[[], bool] = bool,
        interval: float = IDLE,
    ) -> None:
        super().__init__()
        self._store = store
        self._consumer = consumer
        self._tasks_run = tasks_run
        """Whether tasks want the interpreter."""
        self._hinted = True
        self.interval = interval
        self._streams: dict[Partition, FinishedStream] = {}
        self._held: dict[Partition, Portion] = {}
        """Read and not yet archived: they stay for the next try when the database is away."""
        self._failures: dict[Partition, int] = {}
        self._began_at = 0.0
        self._known: set[Partition] = set()
        self._learned_at = 0.0
        self._take_over_at: dict[Partition, float] = {}
        self._down_since = 0.0
        self.archived = 0
        self.waiting = 0
        """Entries of all streams in the last round."""

    def messages_ended(self) -> None:
        """Messages have ended. While the database is away they wait for the next try, which comes
        within a second."""
        self._hinted = True
        if not self.lagging:
            self.sleeper.wake()

    @property
    def has_work(self) -> bool:
        """Whether something waits that the database would take."""
        return not self.lagging and (self._hinted or self.waiting > 0)

    @property
    def figures(self) -> dict[str, Any]:
        """Rows so far, entries that waited at the last look, and whether the database is away."""
        return {"archived": self.archived, "waiting": self.waiting, "lagging": self.lagging}

    @property
    def lagging(self) -> bool:
        """Whether the database has been away since the last try."""
        return bool(self._down_since)

    def run_once(self) -> float:
        """One batch of each partition that has something. Raises ArchiveUnavailable while the
        database is away."""
        since = time.monotonic() - self._began_at
        if since < GATHER and not self._held:
            return GATHER - since
        # Until it is known what waits, something may: a burst must not end in between.
        self._began_at, self.waiting, self._hinted = time.monotonic(), max(1, self.waiting), False
        now = time.monotonic()
        if now - self._learned_at > PARTITIONS_REFRESH or not self._known:
            # A partition that FLUSHALL makes Redis forget stays known: it is used again soon.
            self._known |= set(self._store.topics.used_partitions())
            self._learned_at = now
        partitions = list(self._known | self._held.keys())
        sizes = dict(zip(partitions, lengths(self._store, partitions), strict=True))
        self.waiting = sum(sizes.values())
        archived, errors = [0], []
        for partition, size in sizes.items():
            if not size and partition not in self._held:
                continue
            try:
                archived.append(self._archive(partition, size))
            except DelayQError as error:  # the other partitions are served all the same
                errors.append(error)
        if errors:
            raise errors[0]
        if self._down_since:
            logger.warning("the archive goes on after %.1f s", time.monotonic() - self._down_since)
            self._down_since = 0.0
        self.waiting = max(0, self.waiting - sum(archived))
        return self._pause(max(archived), max(sizes.values(), default=0))

    def _pause(self, archived: int, size: int) -> float:
        if not archived:
            return self.interval if not size else TAKE_OVER_INTERVAL
        if size <= archived:
            return GATHER
        self._began_at, took = 0.0, time.monotonic() - self._began_at
        crowded = size > self._store.client.settings.finished_limit // 2
        return took * REST if self._tasks_run() and not crowded else 0.0

    def _archive(self, partition: Partition, waiting: int) -> int:
        """Archive one batch; of a backlog several, while nobody else wants the interpreter. Returns
        how many entries they had."""
        stream = self._streams.get(partition)
        if stream is None:
            stream = self._streams[partition] = FinishedStream(
                self._store, partition, self._consumer
            )
        now, portion = time.monotonic(), self._held.get(partition, Portion([]))
        if not portion.entries and now >= self._take_over_at.get(partition, 0.0):
            # While there are some, the next round takes more: a dead archiver may leave thousands.
            portion = Portion(stream.take_over())
            if not portion.entries:
                self._take_over_at[partition] = now + TAKE_OVER_INTERVAL
        if not portion.entries:
            portion = Portion(stream.read())
        # While the database is away nothing is read ahead: each failure would leave it to be taken
        # over.
        if waiting > len(portion.entries) and not self.lagging and not self._tasks_run():
            return self._archive_backlog(stream, portion)
        done = self._insert(partition, portion) if portion.entries else []
        if done:
            stream.remove(done)
        return len(done)

    def _archive_backlog(self, stream: FinishedStream, portion: Portion) -> int:
        """Archive the portion and more. While the database works, one thread removes what is
        committed, and one reads ahead and makes the next rows: that is half of the time."""
        archived, connection = 0, connections[get_settings().database]
        with ThreadPoolExecutor(2, "archiver") as beside:
            removal: Future[int] | None = None
            for _ in range(ROUND):
                if not portion.entries:
                    break
                ahead = beside.submit(_read_ahead, stream, connection)
                done = self._insert(stream.partition, portion)
                archived += len(done)
                if removal is not None:
                    removal.result()
                removal = beside.submit(stream.remove, done) if done else None
                portion = ahead.result()
            if portion.entries:
                self._held[stream.partition] = portion
            if removal is not None:
                removal.result()
        return archived

    def _insert(self, partition: Partition, portion: Portion) -> Sequence[Entry]:
        """The entries that the archive has now. What could not be inserted is kept for the next
        try; what was read ahead is taken over then."""
        self._held[partition] = portion
        entries = portion.entries
        try:
            left = store_entries(
                entries, self._failures.get(partition, 0) >= PATIENCE, rows=portion.rows
            )
        except ArchiveUnavailable as error:
            if error.answers:
                self._failures[partition] = self._failures.get(partition, 0) + 1
            if not self._down_since:
                self._down_since = time.monotonic()
                logger.warning("the archive waits, nothing is lost: %s", error)
            raise
        del self._held[partition]
        self._failures.pop(partition, None)
        done = [entry for entry in entries if entry not in left] if left else entries
        self.archived += len(done)
        return done


def _read_ahead(stream: FinishedStream, connection: BaseDatabaseWrapper) -> Portion:
    entries = stream.read(BATCHES)
    try:
        return Portion(entries, quickest_rows(entries, connection))
    except Exception:  # store_entries() meets it again, and finds the bad entry
        return Portion(entries)


def quickest_rows(entries: Sequence[Entry], connection: BaseDatabaseWrapper) -> Sequence[RowValues]:
    """The rows of those entries that are kept, as the quickest way into this database takes
    them."""
    if can_copy(entries, connection):
        return copying.rows_to_copy(to_archive(entries))
    return archive_rows.rows_of(entries, connection)


def store_entries(
    entries: Sequence[Entry], search: bool = False, *, rows: Sequence[RowValues] | None = None
) -> Sequence[Entry]:
    """Insert the rows of the entries and close the outbox rows of the durable ones, in one
    transaction. `rows`: what quickest_rows() has made of the entries, if it has.

    Returns the entries that have to wait, because another transaction holds their rows: they are
    taken over and tried again later (TAKE_OVER_AFTER_MS). With `search`, a batch that fails is
    split until the bad entry is alone; when it is to blame, it becomes an UnarchivableEntry. Raises
    ArchiveUnavailable: nothing was committed of what failed, and all of it may be tried again.
    """
    connection = connections[get_settings().database]
    try:
        renew(connection)
        if search:
            return _store(entries, connection)
        if rows is None:
            rows = quickest_rows(entries, connection)
        if not can_copy(entries, connection):
            return _store(entries, connection, rows)
        with suppress(IntegrityError, NotSupportedError), transaction.atomic(connection.alias):
            copying.copy_rows(rows, connection)
            return closing.close(entries)
        return _store(entries, connection)
    except DelayQError:
        raise
    except Exception as error:
        answers = _answers(connection)
        # Whether it is useless to try the same again. An operational error is a deadlock, a lock or
        # a lost connection. An error that is not the database's comes from a driver that cannot
        # even send the value.
        about_data = not isinstance(error, Error) or isinstance(
            error, DataError | IntegrityError | InternalError
        )
        if not answers or not (search or about_data):
            raise ArchiveUnavailable(error, answers) from error
        if len(entries) == 1:
            return _store_alone(entries[0], error, connection)
        middle = len(entries) // 2
        return [*store_entries(entries[:middle], True), *store_entries(entries[middle:], True)]


def _store(
    entries: Sequence[Entry],
    connection: BaseDatabaseWrapper,
    rows: Sequence[RowValues] | None = None,
) -> Sequence[Entry]:
    if rows is None:
        rows = archive_rows.rows_of(entries, connection)
    with transaction.atomic(using=connection.alias):
        if rows:
            archive_rows.insert(rows, connection)
        return closing.close(entries)


def _answers(connection: BaseDatabaseWrapper) -> bool:
    try:
        connection.ensure_connection()
        usable = connection.is_usable()
    except Error:
        usable = False
    if not usable:
        with suppress(Error):
            connection.close()
    return usable


def _store_alone(
    entry: Entry, error: Exception, connection: BaseDatabaseWrapper
) -> Sequence[Entry]:
    """Store one entry that the database has refused. It is put aside only when it is itself to
    blame."""
    try:
        refused = _rehearse(entry, connection)
    except Error:  # a good row is not taken either: a lock, or a migration is missing
        raise ArchiveUnavailable(error, _answers(connection)) from error
    if refused is not None and not may_pass(refused):
        try:
            with transaction.atomic(using=connection.alias):
                unarchivable.put_aside(entry, refused)
                left = closing.close([entry])
        except Error as failure:
            raise ArchiveUnavailable(failure, _answers(connection)) from failure
        logger.error(
            "message %s of %s cannot be archived; it is on the page of unarchivable entries: %s",
            entry.id.hex(),
            entry.partition.topic,
            refused,
        )
        return left
    try:
        return _store([entry], connection)
    except DelayQError:
        raise
    except Exception as again:
        if not _answers(connection):
            raise ArchiveUnavailable(again, False) from again
        logger.warning("message %s is archived later: %s", entry.id.hex(), again)
        return [entry]


def _rehearse(entry: Entry, connection: BaseDatabaseWrapper) -> Exception | None:
    """The error with which the database refuses this entry while it takes a row that is surely
    good. None: it takes the entry now. Changes nothing.

    Both rows are inserted in one transaction. It holds the locks of the good row, so the error is
    not about a lock of the table that came in between. Raises Error when the good row is not taken.
    """
    good = Entry(b"", Partition("probe", 0), new_id(), "acked", 1, b"", b"", b"{}")
    refused: Exception | None = None
    with transaction.atomic(using=connection.alias):
        archive_rows.insert(
            [archive_rows.row_of(good, archive_rows.forms_of(connection))], connection
        )
        try:
            _store([entry], connection)
        except DelayQError:
            raise
        except Exception as error:
            refused = error
        transaction.set_rollback(True, using=connection.alias)
    return refused
