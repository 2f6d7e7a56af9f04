"""The job schedule for one machine, without Spark: enqueues a message for each row of a file.

All rows are in the memory of this process as Arrow (some 300 bytes a message, plus its body); files
beyond that are for the job on Spark. Both have the same fence: one goes on where the other has
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...core.conf import check_name
from ...core.job_report import Report
from ...store.client import BATCH as CALL
from ...store.store import RedisStore
from ..job_errors import Refused
from ..params import ScheduleOptions
from ..sinks.loader import Loader, LoadSpec
from . import messages, row_messages, scheduling
from .row_files import RowFile, open_rows, unreadable
from .row_messages import LARGE, MessageMaker

#: Takes a line about the progress, how many rows are done, and of how many (0: not known).
Progress = Callable[[str, int, int], object]
#: Messages that are handed to the Loader at a time.
BATCH = 10_000
#: MADE with the line of each row: see row_files.Lines.
READ = LARGE.append(pa.field("line", pa.int64()))


def send_file(
    store: RedisStore, options: ScheduleOptions, progress: Progress, *, dry_run: bool = False
) -> Report:
    """Enqueue: see scheduling.schedule(). The source is a file."""
    check_name(options.job, "a job", Refused)
    if options.rejects:
        _check_apart(options)
    file = open_rows(options.source, options.format)
    maker = MessageMaker(
        planned=row_messages.plan(options, file.schema),
        now=datetime.now(tz=timezone.utc),
        limit=store.client.settings.body_limit,
        partitions=store.topics.configured(options.task.topic),
    )
    try:
        rows = _FileRows(file, maker, store, progress)
    except (OSError, pa.ArrowException) as error:
        raise unreadable(options.source, error) from error
    return scheduling.schedule(
        rows, options, store, dry_run, lambda line: progress(line, 0, rows.good.rows)
    )


class _FileRows:
    """The rows of a file."""

    def __init__(
        self, file: RowFile, maker: MessageMaker, store: RedisStore, progress: Progress
    ) -> None:
        self._file, self._maker, self._store, self._progress = file, maker, store, progress
        self._options = maker.planned.options
        self._made = self._read().combine_chunks()
        copies = messages.copies(self._made.column("id"))
        fits = pc.and_(pc.is_null(self._made.column("reason")), pc.equal(copies, 1))
        self._refused = self._made.append_column("copies", copies).filter(pc.invert(fits))
        self.bad = len(self._refused)
        # All messages are sorted only as they are written: a second copy of them takes longer to
        # make than the order does.
        order = pc.sort_indices(
            self._made.select(["cell", "id"]), [("cell", "ascending"), ("id", "ascending")]
        )
        self._order = _by_turns(self._made.column("cell"), order.filter(fits.take(order)))
        sizes = pc.binary_length(self._made.column("body"))
        self.good = messages.totals(sizes.filter(fits), self._made.column("hash").filter(fits))

    def named(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"line": line, "key": key, "reason": reason}
            for line, key, reason, _ in self._bad()[: scheduling.NAMED]
        ]

    def write_rejects(self) -> None:
        bad, path = self._bad(), rejects_file(self._options)
        at = {line: row for line, _, _, row in bad}
        missing = {line for line, row in at.items() if row is None}
        for rows, lines in self._file.batches() if missing else ():
            # These were good until the whole file was read.
            numbers = [number for number, line in enumerate(lines) if line in missing]
            texts = self._maker.rows_as_json(rows, numbers)
            at |= {lines[number]: text for number, text in zip(numbers, texts, strict=True)}
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            for line, _, reason, _ in bad:
                row = msgspec.Raw((at[line] or "{}").encode())
                content = {"line": line, "reason": reason, "row": row}
                file.write(msgspec.json.encode(content).decode() + "\n")
        unfinished.replace(path)

    def write(self, spec: LoadSpec) -> None:
        rows, chosen = self.good.rows, self._made.select(["id", "due_ms", "body", "cell"])

        def tell(done: int) -> None:
            self._progress(f"{done:,} of {rows:,} messages", done, rows)

        batches = (
            batch
            for at in range(0, rows, BATCH)
            for batch in self._maker.as_messages(chosen.take(self._order.slice(at, BATCH)))
            .combine_chunks()
            .to_batches()
        )
        Loader(self._store, spec).run(batches, tell)

    def rate(self) -> float | None:
        return self._options.max_per_second

    def _read(self) -> pa.Table:
        """MADE of all rows, with the line of each."""
        batches = []
        read = 0
        for rows, lines in self._file.batches():
            made = self._maker.made(rows).append_column("line", pa.array(lines, pa.int64()))
            batches.append(made.cast(READ))
            read += len(rows)
            self._progress(f"{read:,} rows read", read, self._file.size)
        return pa.Table.from_batches(batches, READ)

    def _bad(self) -> list[tuple[int, str | None, str, str | None]]:
        """Line, key, reason, and the row if it is known, of each row that is refused."""
        line, key, row = (self._refused.column(name) for name in ("line", "name", "row"))
        columns = (line, key, messages.refusals(self._refused), row)
        return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def _by_turns(cells: pa.ChunkedArray, order: pa.Array) -> pa.Array:
    """Rows that are in the order of their cells, so that the cells take turns: each time with the
    messages of a call. For the Loader, which sends the calls of a split one after the other."""
    sorted_cells = cells.take(order).to_numpy()
    firsts = np.flatnonzero(np.diff(sorted_cells, prepend=-1))
    nth = np.arange(len(order)) - np.repeat(firsts, np.diff(firsts, append=len(order)))
    return order.take(pa.array(np.argsort(nth // CALL, kind="stable")))


def rejects_file(options: ScheduleOptions) -> Path:
    """DIR/JOB.rejects.jsonl."""
    return Path(options.rejects, f"{options.job}.rejects.jsonl")


def _check_apart(options: ScheduleOptions) -> None:
    if rejects_file(options).resolve() == Path(options.source).resolve():
        raise Refused(
            f"The rejects would go to {rejects_file(options)}, which is the source: give them "
            "another directory."
        )
