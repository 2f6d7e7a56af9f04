"""Frames of messages as format("delayq") writes them. DataFrame in, DataFrame out: no reading, no
writing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from .. import schemas
from ..params import TaskSpec


class FrameTotals(NamedTuple):
    """Sums of a frame of messages."""

    rows: int
    body_bytes: int
    hash: str
    """A sum of hashes of its rows: the same rows have the same sum in any order."""


def header(spec: TaskSpec) -> bytes:
    """The first bytes of the records of a task, after their stamps."""
    from ...core.message import EXPIRES_WITH_DUE, encode_header, task_code, with_limit

    flags = spec.priority | (EXPIRES_WITH_DUE if spec.expires[:1] == "+" else 0)
    plain = encode_header(task_code(spec.name), flags, spec.ttr_ms)
    return with_limit(plain, spec.limit) if spec.limit else plain


def ids(name: Column, key: Column) -> Column:
    """message.key_id(name, key) for every row; null for null. `name` is the topic when the message
    has a key, and else `job NUL topic`. No topic has such a name: so the ids are the same in each
    run, and never those of keys."""
    return arrow_function(_digests, T.BinaryType())(F.concat(name, F.lit("\0"), key))


def arrow_function(function: Callable[..., pa.Array], kind: T.DataType) -> Callable[..., Column]:
    """A function over arrays of Arrow as one over columns. Its annotations are read, so it is no
    method."""
    udf: Callable[[Callable[..., pa.Array], T.DataType], Callable[..., Column]] = vars(F)[
        "arrow_udf"
    ]  # not in stubs
    return udf(function, kind)


def _digests(names: pa.Array) -> pa.Array:
    blake = hashlib.blake2b
    texts = names.cast(pa.binary()).to_pylist()
    joined = b"".join([blake(text or b"", digest_size=16).digest() for text in texts])
    digits = np.frombuffer(joined, np.uint8).reshape(-1, 16).copy()
    digits[:, 6] = 0x80 | digits[:, 6] & 0x0F
    digits[:, 8] = 0x80 | np.maximum(1, digits[:, 8] & 0x3F)
    array = pa.Array.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(digits.tobytes())]
    ).cast(pa.binary())
    return (
        pc.if_else(names.is_valid(), array, pa.scalar(None, pa.binary()))
        if names.null_count
        else array
    )


def placed(frame: DataFrame, counts: Mapping[str, int], splits: int) -> DataFrame:
    """With `partition` and `split` by `topic` and `id`, and `cell`, one number for all three.
    `counts`: numbers of partitions by topic; rows of others get none."""
    count = first = F.lit(None).cast("int")
    before = 0
    for topic, number in counts.items():
        mine = F.col("topic") == topic
        count, first = F.when(mine, number).otherwise(count), F.when(mine, before).otherwise(first)
        before += number * splits
    # The split is of other bytes than the partition.
    places = {
        "partition": (_number(13, 4) % count).cast("int"),
        "split": (_number(10, 2) % F.lit(splits)).cast("int"),
    }
    cell = first + F.col("partition") * F.lit(splits) + F.col("split")
    return frame.withColumns(places).withColumn("cell", cell)


def _number(first: int, length: int) -> Column:
    """Bytes of the id, big-endian."""
    return F.conv(F.hex(F.substring("id", first, length)), 16, 10).cast("long")


def arranged(frame: DataFrame, tasks: int) -> DataFrame:
    """Each split in one piece and in the order of its ids, with `copies`: how many rows have the id
    of this one.

    By `cell` and nothing else: Spark leaves constant columns out, and would spread the rows anew
    for what is left.
    """
    copies = F.count(F.lit(1)).over(Window.partitionBy("cell", "id"))
    return (
        frame.repartition(tasks, "cell")
        .withColumn("copies", copies)
        .sortWithinPartitions("cell", "id")
    )


def summed(frame: DataFrame) -> list[Column]:
    """For agg(): what FrameTotals needs."""
    body = F.octet_length("body").cast("long")
    mixed = F.xxhash64("id", "due_ms", "expires", "header", "body").cast("decimal(38,0)")
    return [
        F.count(F.lit(1)).alias("rows"),
        F.coalesce(F.sum(body), F.lit(0)).alias("body_bytes"),
        F.coalesce(F.sum(mixed), F.lit(0)).cast("string").alias("hash"),
    ]


def message_columns(frame: DataFrame) -> DataFrame:
    """Only the columns of a frame of messages, in their order."""
    fields = from_arrow_schema(schemas.MESSAGES)
    return frame.select(
        *[F.col(field.name).cast(field.dataType).alias(field.name) for field in fields]
    )
