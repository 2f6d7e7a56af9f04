"""What messages of bulk loads are made of: ids, places, headers and the sums that tell two loads
apart. Arrays of Arrow in, arrays of Arrow out; with Spark and without."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..params import TaskSpec


class LoadTotals(NamedTuple):
    """Sums of the messages of a load."""

    rows: int
    body_bytes: int
    hash: str
    """A sum of hashes: the same messages have the same sum in any order."""


def header(spec: TaskSpec) -> bytes:
    """The first bytes of the records of a task, after their stamps."""
    from ...core.message import EXPIRES_WITH_DUE, encode_header, task_code, with_limit

    flags = spec.priority | (EXPIRES_WITH_DUE if spec.expires[:1] == "+" else 0)
    plain = encode_header(task_code(spec.name), flags, spec.ttr_ms)
    return with_limit(plain, spec.limit) if spec.limit else plain


def ids(owners: pa.Array, keys: pa.Array) -> pa.Array:
    """message.key_id(owner, key) of each row; null for null. An owner is the topic when the message
    has a key, and else `job NUL topic`. No topic has such a name: so the ids are the same in each
    run, and never those of keys."""
    blake, absent = hashlib.blake2b, pa.scalar(None, pa.binary())
    texts, named = keys.cast(pa.binary()).to_pylist(), owners.dictionary_encode()
    of_keys = b"".join([blake(text or b"", digest_size=16).digest() for text in texts])
    names = [*named.dictionary.cast(pa.binary()).to_pylist(), b""]  # the last one for null
    of_names = b"".join([blake(name, digest_size=8).digest() for name in names])
    of_owners = np.frombuffer(of_names, np.uint8).reshape(-1, 8)
    digits = np.frombuffer(of_keys, np.uint8).reshape(-1, 16).copy()
    digits[:, 8:] ^= of_owners[named.indices.fill_null(-1).to_numpy()]
    digits[:, 6] = 0x80 | digits[:, 6] & 0x0F
    digits[:, 8] = 0x80 | np.maximum(1, digits[:, 8] & 0x3F)
    buffers = [None, pa.py_buffer(digits.tobytes())]
    array = pa.Array.from_buffers(pa.binary(16), len(texts), buffers).cast(pa.binary())
    return pc.if_else(pc.and_(owners.is_valid(), keys.is_valid()), array, absent)


PLACES = pa.struct([("partition", pa.int32()), ("split", pa.int32()), ("cell", pa.int32())])


def cells(
    topics: pa.Array, message_ids: pa.Array, counts: Mapping[str, int], splits: int
) -> pa.Array:
    """PLACES of each message: where it goes in a topic of so many partitions, and its cell, one
    number for topic, partition and split. A cell is written in the order of its ids. Null without
    an id, and for a topic that is not in `counts`.

    The partition is that of keys.partition_of(); the split is made of other bytes.
    """
    first, cells = {}, 0
    for topic, count in counts.items():
        first[topic] = cells
        cells += count * splits
    encoded = topics.dictionary_encode()
    names = [*encoded.dictionary.to_pylist(), None]  # the last one for null
    named = encoded.indices.fill_null(-1).to_numpy()
    absent = np.array([name not in counts for name in names])[named]
    absent |= message_ids.is_null().to_numpy(zero_copy_only=False)
    digits = bytes_of(message_ids)
    last = np.ascontiguousarray(digits[:, 12:]).view(">u4")[:, 0].astype(np.int64)
    middle = np.ascontiguousarray(digits[:, 9:11]).view(">u2")[:, 0].astype(np.int64)
    partition = last % np.array([counts.get(name, 1) for name in names])[named]
    split = middle % splits
    cell = np.array([first.get(name, 0) for name in names])[named] + partition * splits + split
    columns = [pa.array(numbers, pa.int32()) for numbers in (partition, split, cell)]
    return pa.StructArray.from_arrays(columns, fields=list(PLACES), mask=pa.array(absent))


def bytes_of(message_ids: pa.Array) -> Any:
    """The 16 bytes of each, in a row of numpy; zeros without an id."""
    filled = pc.fill_null(message_ids, pa.scalar(bytes(16), pa.binary())).cast(pa.binary(16))
    start = 16 * filled.offset
    values = filled.buffers()[1][start : start + 16 * len(filled)]
    return np.frombuffer(values, np.uint8).reshape(-1, 16)


def hashes(
    message_ids: pa.Array,
    due_ms: pa.Array,
    expires: pa.Array | pa.Scalar,
    headers: pa.Array | pa.Scalar,
    bodies: pa.Array,
) -> pa.Array:
    """A number (64 bits, signed) for each message: what two runs of a job must have the same."""
    parts = (message_ids, due_ms.cast(pa.string()), expires, headers, bodies)
    whole = pc.binary_join_element_wise(
        *(part.cast(pa.binary()) for part in parts), b"\0",
        null_handling="replace", null_replacement="",
    )  # fmt: skip
    blake = hashlib.blake2b
    digests = [blake(one, digest_size=8).digest() for one in whole.to_pylist()]
    return pa.array(np.frombuffer(b"".join(digests), ">i8").astype(np.int64))


def copies(message_ids: pa.ChunkedArray) -> pa.Array:
    """How many of these have the id of each; 0 without an id."""
    encoded = message_ids.combine_chunks().dictionary_encode().indices
    number = encoded.fill_null(-1).to_numpy() + 1
    counts = np.bincount(number, minlength=1)
    counts[0] = 0
    return pa.array(counts[number])


def totals(sizes: pa.ChunkedArray, hashed: pa.ChunkedArray) -> LoadTotals:
    """Of messages with bodies of so many bytes, and these hashes()."""
    whole = pc.sum(hashed.cast(pa.decimal128(38)))
    return LoadTotals(len(sizes), pc.sum(sizes).as_py() or 0, str(whole.as_py() or 0))


def refusals(bad: pa.Table) -> pa.ChunkedArray:
    """Why each of these rows is refused. They have `reason`, and `copies` as copies() counts them:
    nobody knows which of the rows that share a key is meant."""
    twice = pc.binary_join_element_wise(
        "its key stands ", bad["copies"].cast(pa.string()), " times in the source", ""
    )
    return pc.coalesce(bad["reason"], twice)
