"""Erases a person's rows in the lake: writes the files that hold them again, and commits these in
the place of the old ones, all in one commit. It needs no Spark."""

from __future__ import annotations

from functools import partial, reduce
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ...archive.erasure import Person, redacted
from ...archive.row_arguments import ENCRYPTED
from ...core.job_report import ignore
from ...operators.erase import SAMPLE, LakeErased
from ..job_errors import LakeConflict
from ..params import Storage
from .figure_tables import copy_figures
from .files import LakeFile, Store, new_name, read_file, rewrite
from .lake import Lake
from .ledger import Ledger

#: Seconds that replaced files stay for those who read them: as the grace of an export.
GRACE = 86_400.0
_BEGUN = "An export to the lake has begun and not ended: its rows may be older than this."
#: How often it begins again when others commit meanwhile.
TRIES = 5
#: The columns that say whether a row is the person's.
_OWNING = ("topic", "task", "key", "message_id", "body")


class LakeErasure:
    """Erases the rows of a person in one lake, for erase(lake=...)."""

    def __init__(self, storage: Storage | str | Path) -> None:
        self._lake = Lake(storage)
        self._ledger = Ledger(self._lake)
        self._store = Store(self._lake.storage)

    def __call__(self, person: Person, delete: bool, dry_run: bool) -> LakeErased:
        """Redact the rows, or delete them; with `dry_run` count them.

        Killed at any step it has changed nothing, or all. Raises Refused for the lake of another
        database, LakeError when a file is not as the log says, and LakeConflict when others commit
        again and again.
        """
        # An export that has begun read its rows before they were erased in SQL, and may commit them
        # at any time from now on. One that begins now reads what is left.
        begun = self._ledger.batches.filter(version=None).exists()
        left = [_BEGUN] if begun else []
        if dry_run:
            self._ledger.check()
            held = [ids for file in self._lake.files() if (ids := self._owned(file, person))]
            found = [pk for ids in held for pk in ids]
        else:
            found = self._erase_all(person, delete)
            # In SQL, reasons were taken out of the errors of days.
            copy_figures(self._lake, ignore, create=False)
            self._lake.tidy(GRACE)
        old = self._lake.replaced()
        note = (
            f"{old:,} files of the lake that were replaced are still in its store, for those who "
            f"read them. The first erasure, or export that compacts, after 24 hours deletes them."
        )
        return LakeErased(
            len(found), [str(pk) for pk in found[:SAMPLE]], left, [note] if old else []
        )

    def _erase_all(self, person: Person, delete: bool) -> list[int]:
        """Again and again, until the lake has no row of the person at its newest version."""
        found: list[int] = []
        for more in reversed(range(TRIES)):
            self._lake.refresh()
            self._ledger.catch_up()
            version = self._lake.version
            try:
                found += self._erase(person, delete)
            except LakeConflict:
                if not more:
                    raise
                continue
            # An export that was quicker may have brought rows that were not looked at.
            if self._lake.version <= version + 1:
                break
        return found

    def _erase(self, person: Person, delete: bool) -> list[int]:
        removed, added, found = [], [], list[int]()
        for file in self._lake.files():
            if ids := self._owned(file, person):
                removed.append(file)
                found += ids
                if delete and len(ids) == file.rows:
                    continue
                path = f"dt={file.dt}/{new_name((file.lowest, file.highest))}.parquet"
                erase = partial(_erased, ids=pa.array(ids, pa.int64()), delete=delete)
                added.append(rewrite(self._store, file, path, erase))
        if removed:
            self._lake.replace("erase", removed, added, rows=len(found))
        return found

    def _owned(self, file: LakeFile, person: Person) -> list[int]:
        """The ids of the person's rows. Raises LakeError."""
        found: list[int] = []
        needles = person.match.needles if person.match else []
        for batch in read_file(self._store, file, ["id", *_OWNING]):
            # The text of an encrypted body tells nothing.
            texts = [*needles, f'"redaction":"{ENCRYPTED}"'] if needles else []
            there = [pc.match_substring(batch.column("body"), text) for text in texts]
            some = batch.filter(reduce(pc.or_, there)) if there else batch
            columns = (some.column(name).to_pylist() for name in ("id", *_OWNING))
            found += [
                pk
                for pk, topic, task, key, message_id, body in zip(*columns, strict=True)
                if person.owns_row(topic, task, key, UUID(message_id), body)
            ]
        return found


def _erased(batch: pa.RecordBatch, ids: pa.Array, delete: bool) -> pa.RecordBatch:
    """The rows, those with these ids redacted or left out."""
    owned = pc.is_in(batch["id"], ids)
    if not owned.true_count:
        return batch
    if delete:
        return batch.filter(pc.invert(owned))
    rows = zip(batch.to_pylist(), owned.to_pylist(), strict=True)
    changed = [redacted(row) if is_owned else row for row, is_owned in rows]
    return pa.RecordBatch.from_pylist(changed, schema=batch.schema)
