"""The lake: one Delta table, partitioned by the UTC date on which messages finished, and tables of
figures in its folder.

All that knows the package deltalake is here; it runs on the driver only. Executors write and read
files (files.py), and report what they have written; the driver commits. An export also writes how
far the table has the archive, in the same commit (the version of its application transaction), and
commits only on a snapshot that ends where its rows begin: so rows are in the lake once.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from ..job_errors import LakeConflict, LakeError, Refused
from ..params import Storage
from .files import FILES, LakeFile, Range, Store, sync

#: The table's columns: those of the archive, and the partition.
TABLE = pa.schema([*schemas.ARCHIVE, ("dt", pa.date32())])
#: Application transactions of the table: the last id that was exported, and the first day (counted
#: from 1970) that a retention has left.
EXPORT, RETAIN = "delayq-export", "delayq-retain"
#: That of a table of figures: until when SQL has computed them, in microseconds since 1970.
FIGURES = "delayq-figures"
#: The tables of figures, and their folder in that of the lake. A vacuum passes over names with an
#: underscore.
FIGURE_TABLES = {"topic_hours": schemas.TOPIC_HOURS, "task_days": schemas.TASK_DAYS}
FOLDER = "_figures"
#: Commits at the end of the log among which the last export is sought.
RECENT = 50
#: How often a replacement is tried when others commit at the same time.
TRIES = 10
#: The key of what our commits say about themselves.
NOTE = "delayq"
_CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 30 days",
}
_EPOCH = date(1970, 1, 1)
#: The last millisecond of the year 9999.
_LAST = (datetime.max - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
_DRAFT = re.compile(r"\.json#\d+\Z")

Kind = Literal["append", "compact", "repair", "erase", "retain"]


class Appended(NamedTuple):
    """What a commit of an export says, as long as the log has it (30 days)."""

    version: int
    lo: int
    hi: int
    rows: int
    oldest: int
    """When its first and its last row finished, in microseconds since 1970; 0 without rows."""
    newest: int
    by: str
    """The process that committed it: host:pid."""
    at: datetime


class _Table:
    """A Delta table at a URI, as a snapshot: other writers' commits are seen after refresh() and
    after each commit of one's own. A table that does not exist is empty; create() makes it.

    Raises Refused without the package deltalake, and LakeError for a log that cannot be read.
    """

    def __init__(self, storage: Storage | str | Path) -> None:
        given = storage if isinstance(storage, Storage) else Storage(str(storage))
        path = os.path.abspath(given.uri) if given.is_local else given.uri.rstrip("/")
        self.storage = Storage(path, given.options, given.secrets)
        self.uri = path
        self._table: Any = None
        self._delta: Any = _deltalake()
        self.refresh()

    def refresh(self) -> None:
        """See what was committed since."""
        if self._table is not None:
            self._table.update_incremental()
            return
        with suppress(self._delta.exceptions.TableNotFoundError):
            self._table = self._open()

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self._table is not None

    @property
    def version(self) -> int:
        """The number of the last commit, from 0; -1: there is no table."""
        return int(self._table.version()) if self.exists else -1

    def tidy(self, older_than: float) -> int:
        """Delete files that no version of the last `older_than` seconds has: those of killed
        writers, and those that were replaced so long ago. Returns how many; a reader or writer that
        began later is not disturbed. Also shortens the log.
        """
        if not self.exists:
            return 0
        self.refresh()
        before = self.version
        hours = -int(-older_than // 3600)
        try:
            gone = self._table.vacuum(
                hours, dry_run=False, enforce_retention_duration=False, full=True
            )
        except self._delta.exceptions.CommitFailedError as error:  # delta-rs has tried often
            raise LakeConflict(f"Others commit to {self.uri} again and again.") from error
        self._table.cleanup_metadata()
        self.refresh()
        self._sync(before + 1)
        if self.storage.is_local:
            for draft in Path(self.uri, "_delta_log").iterdir():
                if _DRAFT.search(draft.name) and time.time() - draft.stat().st_mtime > older_than:
                    draft.unlink(missing_ok=True)
        return len(gone)

    def replaced(self) -> int:
        """How many files are still there that a commit has replaced or removed."""
        if not self.exists:
            return 0
        old = self._table.vacuum(0, dry_run=True, enforce_retention_duration=False)
        store = Store(self.storage)
        found = store.fs.get_file_info([store.place(path) for path in old])
        return sum(one.is_file for one in found)

    def _create(self, schema: pa.Schema, **about: Any) -> None:
        """Make the table, unless another process has made it."""
        if self.exists:
            return
        with suppress(self._delta.exceptions.CommitFailedError):
            self._delta.DeltaTable.create(
                self.uri,
                schema,
                mode="ignore",
                storage_options=self.storage.resolved() or None,
                # With a retry, delta-rs would give a table that was made just now another id.
                commit_properties=self._properties({}),
                **about,
            )
        self._table = self._open()
        self._sync(0)

    def _properties(self, transactions: Mapping[str, int], **more: Any) -> Any:
        """Of a commit on the very snapshot that was looked at. By itself, delta-rs would commit on
        other snapshots, too: a removal beside a compaction of the same file would double its
        rows."""
        return self._delta.CommitProperties(
            max_commit_retries=0,
            app_transactions=[self._delta.Transaction(*each) for each in transactions.items()],
            **more,
        )

    def _open(self) -> Any:
        try:
            return self._delta.DeltaTable(self.uri, storage_options=self.storage.resolved() or None)
        except self._delta.exceptions.TableNotFoundError:
            raise
        except self._delta.exceptions.DeltaError as error:
            raise LakeError(f"The log of the lake {self.uri} cannot be read: {error}") from error

    def _sync(self, first: int) -> None:
        """delta-rs leaves it to the system when a commit reaches the disk. A later commit, or a
        pruned row of SQL, must not survive a power failure that it does not survive."""
        if not self.storage.is_local:
            return
        log = Path(self.uri, "_delta_log")
        for version in range(first, self.version + 1):
            for path in log.glob(f"{version:020d}.*"):
                sync(str(path))
        for path in (log / "_last_checkpoint", log, log.parent):
            with suppress(FileNotFoundError):
                sync(str(path))


class Lake(_Table):
    """The table of messages that have ended."""

    def refresh(self) -> None:
        """See what was committed since."""
        self.__dict__.pop("_actions", None)
        super().refresh()

    @property
    def table_id(self) -> str:
        """The random id that the table has had from its beginning, wherever it is moved to."""
        return str(self._table.metadata().id)

    @property
    def last_id(self) -> int:
        """The table has all rows of the archive up to this id; 0: none."""
        return (self.exists and self._table.transaction_version(EXPORT)) or 0

    @property
    def retained_since(self) -> date | None:
        """Rows that finished on earlier days may be gone, by the option `retain`. None: it was
        never used."""
        days = self._table.transaction_version(RETAIN) if self.exists else None
        return None if days is None else _EPOCH + timedelta(days)

    def files(self, since: str = "", until: str = "", ids: Range | None = None) -> list[LakeFile]:
        """The files of the snapshot, by date and then by id: those of these UTC dates (YYYY-MM-DD,
        both included; empty: all), and that may have rows with these ids."""
        found = self._actions
        tests = []
        if since:
            tests.append(pc.field("dt") >= date.fromisoformat(since))
        if until:
            tests.append(pc.field("dt") <= date.fromisoformat(until))
        if ids is not None:
            tests += [pc.field("lowest") <= ids[1], pc.field("highest") > ids[0]]
        for test in tests:
            found = found.filter(test)
        return [LakeFile(**row) for row in found.to_pylist()]

    def uris(self, since: str = "", until: str = "") -> list[str]:
        """The URIs of the same files, for readers that do not know Delta."""
        return [f"{self.uri}/{file.path}" for file in self.files(since, until)]

    @cached_property
    def _actions(self) -> pa.Table:
        """The columns of LakeFile, a row for each file."""
        found = pa.table(self._table.get_add_actions(flatten=True)) if self.exists else None
        if not found:
            return FILES.empty_table()
        columns = (
            "path", "partition.dt", "size_bytes", "num_records", "min.id", "max.id",
            "min.finished_at", "max.finished_at",
        )  # fmt: skip
        if missing := [name for name in columns if name not in found.column_names]:
            raise LakeError(f"The files of {self.uri} have no statistics of {missing[0]}.")
        chosen = found.select(columns).rename_columns(FILES.names).cast(FILES)
        return chosen.sort_by([("dt", "ascending"), ("lowest", "ascending")])

    def appended(self, after: int) -> list[Appended]:
        """What exports have committed after this version, the oldest first, as far as the log still
        has it."""
        if not self.exists:
            return []
        found = []
        for info in self._table.history(min(self.version, self.version - after) or None):
            note = json.loads(info.get(NOTE) or "{}")
            if note.get("kind") == "append":
                at = datetime.fromtimestamp(info["timestamp"] / 1000, tz=timezone.utc)
                words = {name: note[name] for name in Appended._fields[1:-1]}
                found.append(Appended(version=info["version"], at=at, **words))
        return sorted(found)

    def last_appended(self) -> Appended | None:
        """The last commit of an export; None when it is not among the last ones of the log."""
        found = self.appended(self.version - RECENT)
        return found[-1] if found and found[-1].hi == self.last_id else None

    # Writing: each in one commit

    def create(self) -> None:
        """Make the table, unless another process has made it."""
        self._create(
            TABLE,
            partition_by=["dt"],
            name="delayq",
            description="Messages that have ended",
            configuration={
                **_CONFIGURATION,
                "delta.dataSkippingStatsColumns": "id,finished_at",
            },
        )

    def append(self, files: Sequence[LakeFile], ids: Range) -> int:
        """Add the rows of the archive with lo < id <= hi, and move `last_id` to hi. Returns the
        version of the table that has them.

        Raises LakeConflict when this snapshot does not end at lo, or when another writer has
        appended since: then nothing of this one counts.
        """
        lo, hi = ids
        note = {
            "lo": lo,
            "hi": hi,
            "rows": sum(file.rows for file in files),
            "oldest": min((file.oldest for file in files), default=0),
            "newest": max((file.newest for file in files), default=0),
        }

        def check() -> None:
            # delta-rs would take any number from a newer snapshot.
            if self.last_id != lo or hi <= lo:
                raise LakeConflict(self._first(ids))

        return self._commit("append", ([], files), note, check, {EXPORT: hi})

    def replace(
        self,
        kind: Kind,
        removed: Sequence[LakeFile],
        added: Sequence[LakeFile],
        *,
        transactions: Mapping[str, int] | None = None,
        there: tuple[Range, Sequence[LakeFile]] | None = None,
        **note: Any,
    ) -> int:
        """Put these files in the place of others. Returns the version of the table.

        Raises LakeConflict when one of those is not there any more, or when files(ids=...) are not
        `there` any more (the ids and these files): then nothing has changed.
        """

        def check() -> None:
            # delta-rs would take the removal of a file that is gone.
            present = set(self._actions["path"].to_pylist())
            gone = any(file.path not in present for file in removed)
            if gone or (there and self.files(ids=there[0]) != there[1]):
                raise LakeConflict("The files to replace are replaced already: another was first.")

        return self._commit(kind, (removed, added), note, check, transactions or {})

    def retain(self, first: date) -> list[LakeFile]:
        """Remove the days before this one. Returns their files, which tidy() deletes later."""
        if old := self.files(until=str(first - timedelta(days=1))):
            days = max(first, self.retained_since or first) - _EPOCH
            self.replace("retain", old, [], transactions={RETAIN: days.days}, before=str(first))
        return old

    def tidy(self, older_than: float) -> int:
        """Delete files that no version of the last `older_than` seconds has, and shorten the log:
        of the tables of figures, too."""
        tables = [FigureTable(self, name) for name in FIGURE_TABLES]
        return super().tidy(older_than) + sum(table.tidy(older_than) for table in tables)

    def replaced(self) -> int:
        """How many files are still there that a commit has replaced or removed: of the tables of
        figures, too."""
        tables = [FigureTable(self, name) for name in FIGURE_TABLES]
        return super().replaced() + sum(table.replaced() for table in tables)

    def _commit(
        self,
        kind: Kind,
        changes: tuple[Sequence[LakeFile], Sequence[LakeFile]],
        note: Mapping[str, Any],
        check: Callable[[], None],
        transactions: Mapping[str, int],
    ) -> int:
        """Commit on the very snapshot that check() has looked at. When others commit at the same
        time, look again."""
        removed, added = changes
        actions, by = self._delta.transaction, f"{socket.gethostname()}:{os.getpid()}"
        words = json.dumps({"kind": kind, "by": by, **note})
        properties = self._properties(transactions, custom_metadata={NOTE: words})
        for attempt in range(TRIES):
            check()
            now, before, is_change = int(time.time() * 1000), self.version, kind != "compact"
            removals = [
                actions.RemoveAction(file.path, is_change, now, file.bytes, {"dt": str(file.dt)})
                for file in removed
            ]
            additions = [
                actions.AddAction(
                    file.path, file.bytes, {"dt": str(file.dt)}, now, is_change, _stats(file)
                )
                for file in added
            ]
            try:
                self._table.create_write_transaction(
                    [*removals, *additions],
                    mode="append",
                    schema=TABLE,
                    partition_by=["dt"],
                    commit_properties=properties,
                )
            except self._delta.exceptions.CommitFailedError as error:
                if attempt == TRIES - 1:
                    raise LakeConflict(f"Others commit to {self.uri} again and again.") from error
                self.refresh()
                continue
            self.refresh()  # its next commit would be refused by this one
            self._sync(before + 1)
            break
        return self.version

    def _first(self, ids: Range) -> str:
        """Who was first, for a message."""
        last = self.last_appended()
        who = f" ({last.by}, {last.at:%Y-%m-%d %H:%M:%S}Z)" if last else ""
        return (
            f"The lake {self.uri} has the rows up to id {self.last_id:,} at version "
            f"{self.version}: another export was quicker{who}, and the ids {ids[0] + 1:,} to "
            f"{ids[1]:,} do not follow."
        )


class FigureTable(_Table):
    """A table of figures in the folder of a lake, whose days are replaced as a whole."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.name, self.schema = name, FIGURE_TABLES[name]
        uri = f"{lake.uri}/{FOLDER}/{name}"
        super().__init__(Storage(uri, lake.storage.options, lake.storage.secrets))

    @property
    def computed_until(self) -> int:
        """The table has the figures that SQL had computed until then, in microseconds since 1970;
        0: none."""
        return (self.exists and self._table.transaction_version(FIGURES)) or 0

    def create(self) -> None:
        """Make the table, unless another process has made it."""
        self._create(
            self.schema,
            name=self.name,
            description="Figures of messages that have ended",
            configuration={**_CONFIGURATION, "delta.dataSkippingStatsColumns": "dt"},
        )

    def read(self, days: Sequence[date]) -> pa.Table:
        """The rows of these days. Raises LakeError."""
        try:
            found = self._table.to_pyarrow_table(filters=[("dt", "in", list(days))])
        except (OSError, pa.ArrowException) as error:
            raise LakeError(f"{self.uri} cannot be read: {error}") from error
        return found.select(self.schema.names).cast(self.schema)

    def replace(self, days: Sequence[date], rows: pa.Table, computed_until: int | None) -> None:
        """Put these rows in the place of all rows of these days, in one commit; None:
        `computed_until` stays. Raises LakeConflict when others have committed since, and LakeError:
        then nothing has changed."""
        transactions = {} if computed_until is None else {FIGURES: computed_until}
        write = partial(
            self._delta.write_deltalake,
            self._table,
            rows,
            mode="overwrite",
            predicate=" OR ".join(f"dt = DATE '{day}'" for day in days),
            commit_properties=self._properties(transactions),
        )
        try:
            self._written(write)
        except self._delta.exceptions.CommitFailedError as error:
            raise LakeConflict(f"Others commit to {self.uri} again and again.") from error
        except (OSError, self._delta.exceptions.DeltaError) as error:
            raise LakeError(f"{self.uri} cannot be written: {error}") from error

    def tidy(self, older_than: float) -> int:
        """Put small files together, and then as the lake does."""
        if self.exists:
            with suppress(self._delta.exceptions.CommitFailedError):  # the next one does it
                self._written(self._table.optimize.compact)
        return super().tidy(older_than)

    def _written(self, write: Callable[[], object]) -> None:
        """Sync what delta-rs has written and committed."""
        before, there = self.version, set(self._table.file_uris())
        write()
        self.refresh()
        if self.storage.is_local:
            for address in set(self._table.file_uris()) - there:
                sync(unquote(address))  # a space is %20 there
        self._sync(before + 1)


def _stats(file: LakeFile) -> str:
    """As a log has it. Its times have milliseconds, so the last one is rounded up, unless no time
    is later."""
    lows, highs = file.oldest // 1000, min(-(-file.newest // 1000), _LAST)
    return json.dumps(
        {
            "numRecords": file.rows,
            "minValues": {"id": file.lowest, "finished_at": _text(lows)},
            "maxValues": {"id": file.highest, "finished_at": _text(highs)},
            "nullCount": {"id": 0, "finished_at": 0},
        }
    )


def _text(ms: int) -> str:
    when = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    return f"{when.isoformat(timespec='milliseconds')}Z"


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
        import deltalake.transaction
    except ImportError as error:
        raise Refused(
            f"A lake needs the package deltalake on the driver: pip install "
            f"'django-delayq[lake]'. {error}."
        ) from None
    return deltalake
