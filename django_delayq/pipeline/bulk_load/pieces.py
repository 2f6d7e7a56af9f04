"""Messages in pieces: some thousand rows as one value of Spark, in the bytes of Arrow.

Spark moves few values then, and Arrow does the rest. Message by message Spark would take each
through a shuffle, two sorts, a cache and four changes of its form: half of all CPU time of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from . import messages
from .row_messages import LARGE, MADE

#: A cell is put into the order of its ids in so many parts, by the first byte of the ids: one part
#: of one cell has to fit into the memory of a task.
PARTS = 32
#: Fewer of them where all cells would have more together: each part takes a millisecond, and the
#: calls to Redis hold no more than its messages.
ALL_PARTS = 4_096
#: A task cuts its rows into pieces when it has made so many bytes of them.
CUT = 64 * 1024 * 1024
#: Most rows and, about, most bytes of a piece of READY, with messages or with refused rows.
READY_ROWS, READY_BYTES = 5_000, 8 * 1024 * 1024

#: Rows of one part of one cell, in any order.
CUT_ROWS = pa.schema([("part", pa.int32()), ("made", pa.binary())])
#: `messages`: in the order of their ids, with their sums. `refused` rows are in `why`.
READY = pa.schema(
    [
        ("rows", pa.int64()),
        ("body_bytes", pa.int64()),
        ("hash", pa.string()),
        ("messages", pa.binary()),
        ("refused", pa.int64()),
        ("why", pa.binary()),
    ]
)
#: What is in `why`.
WHY = pa.schema([("name", pa.string()), ("reason", pa.string()), ("row", pa.string())])

Batches = Iterator[pa.RecordBatch]


def parts_of(cells: int) -> int:
    """Parts of each cell, where there are so many cells."""
    return max(1, min(PARTS, ALL_PARTS // cells))


def cut(made: Iterable[pa.RecordBatch], cells: int) -> Batches:
    """CUT_ROWS of batches of MADE. `cells`: those of the topic, whether they have rows or not."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in made:
        if not len(batch):
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= CUT:
            yield _cut(waiting, cells)
            waiting, size = [], 0
    if waiting:
        yield _cut(waiting, cells)


def _cut(made: Sequence[pa.RecordBatch], cells: int) -> pa.RecordBatch:
    whole = pa.Table.from_batches(made)
    first = messages.bytes_of(whole["id"].combine_chunks())[:, 0].astype(np.int32)
    parts = parts_of(cells)
    part = whole["cell"].fill_null(0).to_numpy() * parts + first * parts // 256
    without = whole["cell"].is_null().to_numpy()
    # No messages, wherever they are: not all in one part, which would have to hold them all.
    part[without] = np.arange(np.count_nonzero(without)) % (cells * parts)
    order = np.argsort(part, kind="stable")
    in_order, rows = part[order], _one_batch(whole.take(pa.array(order)))
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    cuts = [rows.slice(*one) for one in zip(starts.tolist(), lengths.tolist(), strict=True)]
    names = pa.array(in_order[starts], pa.int32())
    return pa.RecordBatch.from_arrays([names, schemas.packed_rows(cuts)], schema=CUT_ROWS)


def ready(cuts: Iterable[pa.RecordBatch]) -> Batches:
    """READY of CUT_ROWS that are in the order of their parts."""
    rows = (
        row for batch in cuts for row in zip(batch["part"].to_pylist(), batch["made"], strict=True)
    )
    for _, pieces in groupby(rows, lambda row: row[0]):
        yield from _ready(
            pa.Table.from_batches(schemas.unpacked_rows((made for _, made in pieces), MADE))
        )


def _ready(made: pa.Table) -> Batches:
    """Of one part of one cell: rows with the same id are in the same."""
    # More than 2 GiB of bodies are no error, and take() is quick where there is one array of each.
    made = made.cast(LARGE).combine_chunks()
    copies = messages.copies(made["id"])
    fits = pc.and_(pc.is_null(made["reason"]), pc.equal(copies, 1))
    order = pc.sort_indices(made["id"])
    order = order.filter(fits.take(order))
    each = max(1, min(READY_ROWS, int(READY_BYTES * len(made) / max(1, made.nbytes))))
    for at in range(0, len(order), each):
        rows = made.take(order.slice(at, each))
        totals = messages.totals(rows["body"], rows["hash"])
        chosen = rows.select(schemas.MESSAGES.names).cast(schemas.MESSAGES)
        yield _row({**totals._asdict(), "messages": chosen})
    bad = made.append_column("copies", copies).filter(pc.invert(fits))
    why = bad.set_column(bad.schema.get_field_index("reason"), "reason", messages.refusals(bad))
    for at in range(0, len(bad), each):
        some = why.select(WHY.names).slice(at, each).cast(WHY)
        yield _row({"refused": len(some), "why": some})


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Of a table that has rows."""
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _row(values: Mapping[str, Any]) -> pa.RecordBatch:
    """A row of READY; tables in it are packed, and what is not given is null."""
    columns = [
        schemas.packed_rows([_one_batch(values[field.name])])
        if isinstance(values.get(field.name), pa.Table)
        else pa.array([values.get(field.name)], field.type)
        for field in READY
    ]
    return pa.RecordBatch.from_arrays(columns, schema=READY)
