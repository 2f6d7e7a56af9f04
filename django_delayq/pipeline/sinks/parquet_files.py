"""Copies rows of the archive to Parquet while they are read: by Arrow, a tenth of the work of
Spark's own writer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

#: Bytes of rows that are sorted and written at a time.
CHUNK = 64 * 1024 * 1024
#: Columns in which hardly a value comes twice: a dictionary would save nothing.
_UNIQUE = frozenset(
    (
        "id",
        "message_id",
        "body",
        "enqueued_at",
        "due_at",
        "started_at",
        "finished_at",
        "lateness_ms",
        "run_ms",
    )
)
#: The suffix of a file until it is whole.
UNFINISHED = ".unfinished"


def copied(batches: Iterator[pa.RecordBatch], attempt: Path, name: str) -> Iterator[pa.RecordBatch]:
    """The same batches. After the last one, `attempt`/dt=YYYY-MM-DD/`name`.parquet has the rows
    that finished on that UTC date; until then readers find none of them.

    A task that is repeated, or runs twice at the same time, writes the same rows: the first file
    stays.
    """
    kept: list[pa.RecordBatch] = []
    size = 0
    with closing(_Files(attempt, name)) as files:
        for batch in batches:
            yield batch
            kept.append(batch)
            size += batch.nbytes
            if size >= CHUNK:
                files.write(pa.Table.from_batches(kept))
                kept, size = [], 0
        if kept:
            files.write(pa.Table.from_batches(kept))
        files.finish()


def tidy(data: Path, older_than: float) -> None:
    """Remove the unfinished files of killed tasks from the attempts of a lake: those to which
    nobody wrote for this number of seconds."""
    for path in data.glob(f"*/dt=*/.*{UNFINISHED}"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > older_than:
                path.unlink()


class _Files:
    """The files of one task: one for each date, or several if it has many bytes."""

    def __init__(self, attempt: Path, name: str) -> None:
        self._attempt, self._name = attempt, name
        self._own = os.urandom(6).hex()
        self._pieces = 0
        self._names: dict[Path, str] = {}
        """Unfinished file -> its name when it is whole."""

    def write(self, rows: pa.Table) -> None:
        """Write a file for each date. It is closed at once, because a first export of several years
        has a thousand dates."""
        piece = f"-{self._pieces}" if self._pieces else ""
        self._pieces += 1
        # Similar rows lie together, which saves a quarter of the bytes.
        rows = rows.append_column("dt", rows["finished_at"].cast(pa.date32())).sort_by(
            [(name, "ascending") for name in ("dt", "topic", "finished_at")]
        )
        begin = 0
        for found in rows["dt"].value_counts().to_pylist():
            date, count = found["values"], found["counts"]
            of_date = rows.slice(begin, count).drop_columns("dt")
            begin += count
            folder = self._attempt / f"dt={date}"
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f".{self._name}{piece}.{self._own}{UNFINISHED}"
            self._names[unfinished] = f"{self._name}{piece}.parquet"
            # The level of Spark; dictionaries only where they help: a quarter of the bytes less
            # than by default, and no slower.
            parquet.write_table(
                of_date,
                unfinished,
                store_schema=False,
                compression="zstd",
                compression_level=3,
                use_dictionary=[name for name in of_date.column_names if name not in _UNIQUE],
            )

    def finish(self) -> None:
        """Give the files their names."""
        for unfinished, name in self._names.items():
            with suppress(FileExistsError):
                os.link(unfinished, unfinished.with_name(name))

    def close(self) -> None:
        for unfinished in self._names:
            unfinished.unlink(missing_ok=True)
