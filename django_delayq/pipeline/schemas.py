"""The columns of what the pipeline reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

import pyarrow as pa

from ..core.exceptions import ConfigurationError

TIME = pa.timestamp("us", tz="UTC")


def chosen(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """These columns, in this order. Raises ConfigurationError for an unknown column."""
    if missing := [name for name in names if name not in schema.names]:
        raise ConfigurationError(
            f"There is no column {missing[0]!r}, only {', '.join(schema.names)}."
        )
    return pa.schema([schema.field(name) for name in names])


#: The archive, in the order of the lake's files. Without what changes after a message has ended
#: (replayed_at, replayed_by, discarded_at): a row of the lake is a fact, and stays equal to its row
#: in SQL.
ARCHIVE = pa.schema(
    [
        ("id", pa.int64()),
        ("message_id", pa.string()),
        ("enqueued_at", TIME),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("task", pa.string()),
        ("key", pa.string()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("body", pa.string()),
        ("headers", pa.string()),
        ("priority", pa.int32()),
        ("ttr_ms", pa.int64()),
        ("max_attempts", pa.int32()),
        ("attempts", pa.int64()),
        ("crashes", pa.int64()),
        ("history", pa.string()),
        ("due_at", TIME),
        ("started_at", TIME),
        ("finished_at", TIME),
        ("lateness_ms", pa.float64()),
        ("run_ms", pa.float64()),
        ("worker", pa.string()),
        ("error_class", pa.string()),
        ("error_message", pa.string()),
        ("traceback", pa.string()),
        ("replay_of", pa.int64()),
        ("result", pa.string()),
    ]
)

#: What a replay reads of the archive: also what was done about a dead letter.
LETTERS = pa.schema([*ARCHIVE, ("replayed_at", TIME), ("discarded_at", TIME)])

#: The columns that the figures of stats are made of: a third of the bytes.
FIGURES = chosen(
    ARCHIVE,
    [
        "finished_at",
        "topic",
        "task",
        "state",
        "attempts",
        "lateness_ms",
        "run_ms",
        "error_class",
        "reason",
    ],
)

_COUNTS = ("messages", "acked", "dead", "cancelled", "expired", "attempts", "retried")
_OF_SPAN = [
    *((name, pa.int64()) for name in _COUNTS),
    *(
        (f"{metric}_{figure}_ms", pa.float64())
        for metric in ("lateness", "run")
        for figure in ("p50", "p99", "max", "sum")
    ),
    ("lateness_histogram", pa.string()),
    ("run_histogram", pa.string()),
    ("computed_at", TIME),
]
#: The tables of figures in the lake. `dt` is the UTC date; percentiles are those of the histograms.
TOPIC_HOURS = pa.schema([("dt", pa.date32()), ("hour", TIME), ("topic", pa.string()), *_OF_SPAN])
TASK_DAYS = pa.schema(
    [
        ("dt", pa.date32()),
        ("topic", pa.string()),
        ("task", pa.string()),
        *_OF_SPAN,
        ("errors", pa.string()),
    ]
)

#: What waits in SQL.
OUTBOX = pa.schema(
    [
        ("message_id", pa.string()),  # 32 hexadecimal digits
        ("enqueued_at_us", pa.int64()),  # with the id it names one life
        ("topic", pa.string()),
        ("task", pa.string()),
        ("key", pa.string()),
        ("due_at", TIME),
        ("status", pa.string()),  # waiting, sent
        ("record", pa.binary()),
    ]
)

#: What lies in Redis, one row per id and place: a healthy message has one row, a damaged one
#: several, or one without a record.
QUEUE = pa.schema(
    [
        ("message_id", pa.string()),  # 32 hexadecimal digits
        ("topic", pa.string()),
        ("partition", pa.int32()),
        # high, normal, low, leased, follower, finished (an entry of the stream), done, none
        ("place", pa.string()),
        ("due_at", TIME),  # of a leased one: when its lease ends
        ("enqueued_at_us", pa.int64()),  # null without a record; with the id it names one life
        ("task_code", pa.string()),  # 8 hexadecimal digits
        ("durable", pa.bool_()),
        ("has_attempts", pa.bool_()),
        ("record", pa.binary()),
    ]
)

#: What format("delayq") writes. `due_ms` null: the due time of the load. `expires` as in TaskSpec.
#: `header`: bytes 14 to 22 of a record (core/message.py).
MESSAGES = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("split", pa.int32()),
        ("id", pa.binary()),
        ("due_ms", pa.int64()),
        ("expires", pa.string()),
        ("header", pa.binary()),
        ("body", pa.string()),
    ]
)
#: What names a split. One task of Spark writes it alone, in the order of the ids: the idempotent
#: load relies on this.
SPLIT = ("topic", "partition", "split")


def packed_rows(batches: Iterable[pa.RecordBatch]) -> pa.BinaryArray:
    """Each batch as one value, without its schema; less than 2 GiB together."""
    values = [rows.serialize() for rows in batches]
    ends = pa.array([0, *accumulate(value.size for value in values)], pa.int32()).buffers()[1]
    # One value is not copied. pa.array() of them takes ten times as long.
    whole = values[0] if len(values) == 1 else pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), len(values), [None, ends, whole])


def unpacked_rows(values: Iterable[pa.BinaryScalar], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of packed_rows() values; of null there are none."""
    for value in values:
        if value.is_valid:
            yield pa.ipc.read_record_batch(value.as_buffer(), schema)
