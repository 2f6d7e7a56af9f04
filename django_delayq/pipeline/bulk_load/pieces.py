"""Messages in pieces: some thousand rows as one value of Spark, in the bytes of Arrow.

Spark moves few values then, and Arrow does the rest. Message by message Spark would take each
through a shuffle, two sorts, a cache and four changes of its form: half of all CPU time of the job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import schemas
from . import messages
from .row_messages import LARGE, MADE, MessageMaker

#: A cell is put into the order of its ids in so many parts, by the first byte of the ids: one part
#: of one cell has to fit into the memory of a task.
PARTS = 32
#: Fewer of them where all cells would have more together: each part takes a millisecond, and the
#: calls to Redis hold no more than its messages.
ALL_PARTS = 4_096
#: A task cuts its rows into pieces when it has made so many bytes of them.
CUT = 64 * 1024 * 1024
#: Most rows and, about, most bytes of a batch of messages or of refused rows.
MOST_ROWS, MOST_BYTES = 5_000, 8 * 1024 * 1024

#: Rows of one part of one cell, in any order: what part_totals() needs of them, and ROWS.
CUT_ROWS = pa.schema([("part", pa.int32()), ("sums", pa.binary()), ("made", pa.binary())])
#: What is in `sums`: a fifth of the bytes of `made`.
SUMS = pa.schema(
    [("id", pa.binary()), ("hash", pa.int64()), ("size", pa.int32()), ("fits", pa.bool_())]
)
#: What is in `made`.
ROWS = pa.schema([field for field in MADE if field.name != "hash"])
#: Sums of a part.
TOTALS = pa.schema(
    [("rows", pa.int64()), ("body_bytes", pa.int64()), ("hash", pa.string()), ("bad", pa.int64())]
)
#: Rows that are no messages.
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
    in_order, rows = part[order], whole.take(pa.array(order))
    sizes = pc.binary_length(rows["body"])
    sums = pa.table([rows["id"], rows["hash"], sizes, rows["reason"].is_null()], schema=SUMS)
    starts = np.flatnonzero(np.diff(in_order, prepend=-1))
    lengths = np.diff(starts, append=len(rows))
    spans = list(zip(starts.tolist(), lengths.tolist(), strict=True))
    packed = [
        schemas.packed_rows(one.slice(*span) for span in spans)
        for one in map(_one_batch, (sums, rows.select(ROWS.names)))
    ]
    names = pa.array(in_order[starts], pa.int32())
    return pa.RecordBatch.from_arrays([names, *packed], schema=CUT_ROWS)


def part_totals(cuts: Iterable[pa.RecordBatch]) -> Batches:
    """TOTALS of CUT_ROWS that are in the order of their parts."""
    for rows in _by_part(cuts, "sums", SUMS):
        fits = _fit(rows["fits"], messages.copies(rows["id"]))
        good = rows.filter(fits)
        totals = messages.totals(good["size"], good["hash"])
        columns = {**totals._asdict(), "bad": len(rows) - len(good)}
        yield pa.RecordBatch.from_pylist([columns], schema=TOTALS)


def ready(cuts: Iterable[pa.RecordBatch], maker: MessageMaker) -> Batches:
    """schemas.MESSAGES of CUT_ROWS that are in the order of their parts; of each cell in the order
    of its ids."""
    for made, fits, _ in _checked(cuts):
        order = pc.sort_indices(made["id"])
        order = order.filter(fits.take(order))
        each = _most_rows(made)
        for at in range(0, len(order), each):
            yield _one_batch(maker.as_messages(made.take(order.slice(at, each))))


def reasons(cuts: Iterable[pa.RecordBatch]) -> Batches:
    """WHY of the rows that are no messages, of CUT_ROWS that are in the order of their parts."""
    for made, fits, copies in _checked(cuts):
        bad = made.append_column("copies", copies).filter(pc.invert(fits))
        why = pa.table([bad["name"], messages.refusals(bad), bad["row"]], WHY.names)
        each = _most_rows(made)
        for at in range(0, len(why), each):
            yield _one_batch(why.slice(at, each).cast(WHY))


def _checked(
    cuts: Iterable[pa.RecordBatch],
) -> Iterator[tuple[pa.Table, pa.ChunkedArray, pa.Array]]:
    """ROWS of each part, where rows with the same id are in the same; which of them are messages;
    and how many have the id of each."""
    # More than 2 GiB of bodies are no error, and take() is quick where there is one array of each.
    large = pa.schema([LARGE.field(name) for name in ROWS.names])
    for rows in _by_part(cuts, "made", ROWS):
        made = rows.cast(large).combine_chunks()
        copies = messages.copies(made["id"])
        yield made, _fit(made["reason"].is_null(), copies), copies


def _most_rows(made: pa.Table) -> int:
    return max(1, min(MOST_ROWS, int(MOST_BYTES * len(made) / max(1, made.nbytes))))


def _by_part(cuts: Iterable[pa.RecordBatch], column: str, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of each part, of a packed column."""
    pieces = (
        piece
        for batch in cuts
        for piece in zip(batch["part"].to_pylist(), batch[column], strict=True)
    )
    for _, same in groupby(pieces, lambda piece: piece[0]):
        yield pa.Table.from_batches(schemas.unpacked_rows((rows for _, rows in same), schema))


def _fit(fits: pa.ChunkedArray, copies: pa.Array) -> pa.ChunkedArray:
    """Which rows are messages: of rows that share a key, none is."""
    return pc.and_(fits, pc.equal(copies, 1))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Of a table that has rows."""
    (batch,) = table.combine_chunks().to_batches()
    return batch
