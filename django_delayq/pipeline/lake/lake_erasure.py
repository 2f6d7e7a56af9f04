"""Erases a person's rows in the lake: writes the files that hold them again, and commits these in
the place of the old ones, all in one commit. It needs no Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ...archive.erasure import Person, redacted
from ...archive.row_arguments import ENCRYPTED
from ...operators.erase import SAMPLE, LakeErased
from .. import schemas
from ..job_errors import LakeConflict, LakeError
from .lake import BatchSum, Commit, Lake, LakeFile, batch_sums
from .ledger import Ledger
from .row_hash import row_hash

#: Seconds that replaced files stay for those who read them: as the grace of an export.
GRACE = 86_400.0
#: Rows that are in memory at a time.
ROWS = 20_000
_BEGUN = "An export to the lake has begun and not ended: its rows may be older than this."
#: How often it begins again when others commit meanwhile.
TRIES = 5
#: The columns that say whether a row is the person's.
_OWNING = ("topic", "task", "key", "message_id", "body")
#: As whole numbers, times keep their microseconds and need no calendar.
_NUMBERS = pa.schema(
    [
        pa.field(field.name, pa.int64() if pa.types.is_timestamp(field.type) else field.type)
        for field in schemas.ARCHIVE
    ]
)


class Rewritten(NamedTuple):
    """A file that held rows of the person."""

    old: LakeFile
    ids: Sequence[int]
    """Of these rows."""
    new: LakeFile | None
    """The file that replaces it; None when no row is left."""
    changes: Mapping[int, tuple[int, int]]
    """By the lo of a batch: by how much its rows, and the sum of their hashes, grow."""


class LakeErasure:
    """Erases the rows of a person in one lake, for erase(lake=...)."""

    def __init__(self, root: str | Path) -> None:
        self._lake = Lake(root)
        self._ledger = Ledger(self._lake)

    def __call__(self, person: Person, delete: bool, dry_run: bool) -> LakeErased:
        """Redact the rows, or delete them; with `dry_run` count them.

        Killed at any step it has changed nothing, or all. Raises Refused for the lake of another
        database, LakeError when a file is not as its commit says, and LakeConflict when others
        commit again and again.
        """
        # An export that has begun read its rows before they were erased in SQL, and may commit them
        # at any time from now on. One that begins now reads what is left.
        begun = self._ledger.batches.filter(seq=None).exists()
        left = [_BEGUN] if begun else []
        if dry_run:
            self._ledger.check()
            held = [ids for file in self._lake.files() if (ids := self._owned(file, person))]
            found = [pk for ids in held for pk in ids]
        else:
            for more in reversed(range(TRIES)):
                try:
                    found = self._erase(person, delete)
                    break
                except LakeConflict:
                    if not more:
                        raise
            self._lake.sweep(GRACE)
        old = len([*self._lake.replaced(0)])
        note = (
            f"{old:,} files of the lake that were replaced are still on its disk, for those who "
            f"read them. The first export or erasure after 24 hours removes them."
        )
        return LakeErased(
            len(found), [str(pk) for pk in found[:SAMPLE]], left, [note] if old else []
        )

    def _erase(self, person: Person, delete: bool) -> list[int]:
        commits = self._ledger.catch_up()
        attempt: Path | None = None
        done: list[Rewritten] = []
        for file in self._lake.files():
            if ids := self._owned(file, person):
                attempt = attempt or self._lake.attempt(min(ids), max(ids), self._ledger.archive)
                path = attempt / f"dt={file.dt}" / f"part-{len(done)}.parquet"
                done.append(self._rewrite(file, set(ids), path, commits, delete))
        if attempt is None:
            return []
        if attempt.exists():
            self._lake.persist(attempt)
        try:
            self._ledger.committed(self._lake.add(self._commit(done, commits)))
        except LakeConflict:
            self._lake.drop(attempt)
            raise
        return [pk for rewritten in done for pk in rewritten.ids]

    def _owned(self, file: LakeFile, person: Person) -> list[int]:
        """The ids of the person's rows. Raises LakeError."""
        found: list[int] = []
        needles = person.match.needles if person.match else []
        for batch in self._batches(file, ["id", *_OWNING]):
            # The text of an encrypted body tells nothing.
            texts = [*needles, f'"redaction":"{ENCRYPTED}"'] if needles else []
            there = [pc.match_substring(batch.column("body"), text) for text in texts]
            candidates = batch.filter(reduce(pc.or_, there)) if there else batch
            columns = (candidates.column(name).to_pylist() for name in ("id", *_OWNING))
            found += [
                pk
                for pk, topic, task, key, message_id, body in zip(*columns, strict=True)
                if person.owns_row(topic, task, key, UUID(message_id), body)
            ]
        return found

    def _rewrite(
        self, file: LakeFile, ids: set[int], path: Path, commits: Sequence[Commit], delete: bool
    ) -> Rewritten:
        """Write a file without what is erased, and read it again. Raises LakeError."""
        edges = [(commit.lo, commit.hi) for commit in commits if commit.kind == "append"]
        changes: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        pks: list[int] = []

        def kept() -> Iterator[pa.RecordBatch]:
            for batch in self._batches(file):
                if (rest := _without(batch, ids, delete)).num_rows:
                    yield rest

        path.parent.mkdir(parents=True, exist_ok=True)
        with parquet.ParquetWriter(
            path, schemas.ARCHIVE, compression="zstd", store_schema=False
        ) as writer:
            for batch in kept():
                writer.write_batch(batch, row_group_size=ROWS)
                pks += batch.column("id").to_pylist()
        for batch in self._batches(file):
            for row in _numbers(batch, ids):
                (lo,) = (lo for lo, hi in edges if lo < row["id"] <= hi)
                changes[lo][0] -= int(delete)
                changes[lo][1] += (0 if delete else row_hash(redacted(row))) - row_hash(row)
        by_batch = {lo: (rows, signature) for lo, (rows, signature) in changes.items()}
        if not pks:
            path.unlink()
            return Rewritten(file, sorted(ids), None, by_batch)
        _compare(path, kept())
        signature = int(file.signature or 0) + sum(by for _, by in by_batch.values())
        new = LakeFile(
            str(path.relative_to(self._lake.root)),
            len(pks),
            path.stat().st_size,
            file.dt,
            min(pks),
            max(pks),
            str(signature) if file.signature else "",
        )
        return Rewritten(file, sorted(ids), new, by_batch)

    def _commit(self, done: Sequence[Rewritten], commits: Sequence[Commit]) -> Commit:
        """All of the files in one."""
        sums = batch_sums(commits)
        changed: dict[int, BatchSum] = {}
        for rewritten in done:
            for lo, (rows, signature) in rewritten.changes.items():
                before = changed.get(lo, sums[lo])
                changed[lo] = BatchSum(
                    lo, before.rows + rows, str(int(before.signature or 0) + signature)
                )
        files = [rewritten.new for rewritten in done if rewritten.new]
        appended = [commit for commit in commits if commit.kind == "append"][-1]
        return Commit(
            seq=0,
            kind="erase",
            lo=min(rewritten.old.lowest for rewritten in done),
            hi=max(rewritten.old.highest for rewritten in done),
            rows=sum(file.rows for file in files),
            signature=str(sum(int(file.signature or 0) for file in files)),
            settled_at=appended.settled_at,  # the last commit says how far the lake is settled
            files=files,
            removes=[rewritten.old.path for rewritten in done],
            batches=list(changed.values()),
            archive=appended.archive,
        )

    def _batches(
        self, file: LakeFile, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a file. Raises LakeError."""
        path = self._lake.check(file)
        schema = schemas.chosen(schemas.ARCHIVE, columns or schemas.ARCHIVE.names)
        try:
            with parquet.ParquetFile(path) as source:
                if source.metadata.num_rows != file.rows:
                    raise LakeError(
                        f"{path} has {source.metadata.num_rows:,} rows, its commit says "
                        f"{file.rows:,}. Nothing is erased."
                    )
                for batch in source.iter_batches(ROWS, columns=schema.names):
                    yield batch.select(schema.names).cast(schema)
        except (OSError, pa.ArrowInvalid) as error:
            raise LakeError(f"{path} cannot be read: {error}. Nothing is erased.") from error


def _without(batch: pa.RecordBatch, ids: set[int], delete: bool) -> pa.RecordBatch:
    """The rows, those with these ids redacted or left out."""
    owned = [pk in ids for pk in batch.column("id").to_pylist()]
    if not any(owned):
        return batch
    if delete:
        return batch.filter(pa.array([not is_owned for is_owned in owned]))
    rows = batch.to_pylist()
    changed = [
        redacted(row) if is_owned else row for row, is_owned in zip(rows, owned, strict=True)
    ]
    return pa.RecordBatch.from_pylist(changed, schema=batch.schema)


def _numbers(batch: pa.RecordBatch, ids: set[int]) -> list[dict[str, Any]]:
    """The rows with these ids, for row_hash()."""
    owned = pa.array([pk in ids for pk in batch.column("id").to_pylist()])
    rows: list[dict[str, Any]] = batch.filter(owned).cast(_NUMBERS).to_pylist()
    return rows


def _compare(path: Path, batches: Iterator[pa.RecordBatch]) -> None:
    """Raise LakeError unless a file has these rows, each batch as a row group."""
    with parquet.ParquetFile(path) as written:
        groups = (written.read_row_group(n) for n in range(written.num_row_groups))
        for group, batch in zip_longest(groups, batches):
            if group is None or batch is None or not group.equals(pa.table(batch)):
                raise LakeError(f"{path} does not hold what was written to it: nothing is erased.")
