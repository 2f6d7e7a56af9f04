"""The structures of a partition in Redis as batches of Arrow, for the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from ...core.message import HEADER_END, is_durable, stamp_us_of, task_code_of
from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from .structures import Structure, place_rows, read_scores

#: 9999-12-31, the last day of Python's calendar. Later due times, such as infinity, become this.
LAST_MS = 253_402_214_400_000.0

#: HELD of shared/partition.lua.
HELD_MS = 2.0**48


def read_structure(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """Its rows as schemas.QUEUE."""
    partition, name = structure
    place = "none" if name == "attempts" else name
    for rows in place_rows(store, structure):
        if not rows:
            continue
        records = [row.record for row in rows]
        codes = [
            task_code_of(record).hex() if record and len(record) >= HEADER_END else None
            for record in records
        ]
        # As the scripts see it: a record that is too short for the flag is not durable.
        durable = [
            bool(row.stamp) or (None if row.record is None else is_durable(row.record))
            for row in rows
        ]
        stamps = [stamp_us_of(row.stamp or row.record or b"") for row in rows]
        columns = [
            *_place(partition, [row.id for row in rows]),
            pa.repeat(place, len(rows)),
            _times([row.due_ms for row in rows]),
            pa.array(stamps, pa.int64()),
            pa.array(codes, pa.string()),
            pa.array(durable, pa.bool_()),
            pa.array([row.has_attempts for row in rows], pa.bool_()),
            pa.array(records, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schemas.QUEUE)


def read_due(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """The ids of a lane and their due times as schemas.DUE."""
    for page in read_scores(store, structure):
        ids, scores = zip(*page, strict=True)
        columns = [*_place(structure.partition, ids), _times(scores)]
        yield pa.RecordBatch.from_arrays(columns, schema=schemas.DUE)


# From rows to Arrow


def _place(partition: Partition, ids: Sequence[bytes]) -> list[pa.Array]:
    """The columns that all rows begin with."""
    count = len(ids)
    return [
        pa.array([message_id.hex() for message_id in ids], pa.string()),
        pa.repeat(partition.topic, count),
        pa.repeat(pa.scalar(partition.number, pa.int32()), count),
    ]


def _times(milliseconds: Sequence[float | None]) -> pa.Array:
    exact = np.array(milliseconds, float)  # None as NaN, which no score is
    # What a limit holds back has so much added to its due time in its lane.
    exact = np.where((exact >= HELD_MS) & (exact < 2 * HELD_MS), exact - HELD_MS, exact)
    missing = np.isnan(exact)
    microseconds = np.rint(np.where(missing, 0.0, np.clip(exact, 0.0, LAST_MS)) * 1000).astype(
        np.int64
    )
    return pa.array(microseconds, mask=missing).cast(schemas.TIME)
