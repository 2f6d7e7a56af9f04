"""The hash of a row of the lake in plain Python, for few rows: the same number as Spark's
xxhash64() of all columns, of which the signatures of the commits are sums."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from .. import schemas

SEED = 42
_MASK = 2**64 - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def row_hash(row: Mapping[str, Any]) -> int:
    """Of a row whose times are whole microseconds, as a signed number. Null leaves the hash of the
    columns before as it is."""
    found = SEED
    for field in schemas.ARCHIVE:
        value = row[field.name]
        if value is None:
            continue
        if pa.types.is_string(field.type):
            data = str(value).encode()
        elif pa.types.is_float64(field.type):
            data = struct.pack("<d", value + 0.0)  # both zeros have one hash
        else:
            data = struct.pack("<i" if pa.types.is_int32(field.type) else "<q", value)
        found = xxh64(data, found)
    return found - 2**64 if found >= 2**63 else found


def xxh64(data: bytes, seed: int) -> int:
    """XXH64, as its specification has it."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [
            (seed + _P1 + _P2) & _MASK,
            (seed + _P2) & _MASK,
            seed,
            (seed - _P1) & _MASK,
        ]
        while at <= size - 32:
            words = struct.unpack_from("<4Q", data, at)
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            at += 32
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        found = sum(_rotated(lane, by) for lane, by in turns) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = (seed + _P5) & _MASK
    found = (found + size) & _MASK
    while at <= size - 8:
        (word,) = struct.unpack_from("<Q", data, at)
        found = (_rotated(found ^ _round(0, word), 27) * _P1 + _P4) & _MASK
        at += 8
    if at <= size - 4:
        (word,) = struct.unpack_from("<I", data, at)
        found = (_rotated(found ^ (word * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
        found = (found ^ (found >> shift)) * factor & _MASK
    return found


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK


def _rotated(word: int, by: int) -> int:
    return ((word << by) | (word >> (64 - by))) & _MASK
