"""Reads what lies in the structures of a partition as Arrow batches, a page at a time.

Runs on executors: a store is made of the parameters. Nothing but plain commands that read, so a
replica will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...core.message import HEADER_END, is_durable, stamp_us_of, task_code_of
from ...store.client import Read
from ...store.keys import Partition, partition_keys
from ...store.store import RedisStore
from .. import schemas

#: Elements that one reply holds when they are ids and numbers only, and when they are records.
IDS, RECORDS = 5_000, 1_000
#: Bytes of records in one reply, however large they may be.
REPLY_BYTES = 32 * 1024 * 1024
#: 9999-12-31, the last day of Python's calendar: later due times, such as infinity, are that one.
LAST_MS = 253_402_214_400_000.0

LANES = ("high", "normal", "low")
#: What is read, with the number of its key in partition_keys(). Of `none` there are two: records,
#: and attempts.
STRUCTURES = {
    "high": 0, "normal": 1, "low": 2, "leased": 3, "none": 4, "attempts": 5, "finished": 6,
    "follower": 7, "done": 8,
}  # fmt: skip
#: Command that counts it.
SIZES = ("ZCARD", "ZCARD", "ZCARD", "ZCARD", "HLEN", "HLEN", "XLEN", "HLEN", "HLEN")


class Structure(NamedTuple):
    """One structure of one partition."""

    partition: Partition
    name: str
    """Of STRUCTURES."""


class Row(NamedTuple):
    """An id in a place."""

    id: bytes
    due_ms: float | None = None
    record: bytes | None = None
    has_attempts: bool | None = None
    stamp: bytes | None = None
    """In place of that of a record."""


def sizes(store: RedisStore, structures: Sequence[Structure]) -> Sequence[int]:
    """How many elements each has now."""
    reads = [
        Read(
            SIZES[STRUCTURES[one.name]],
            None,
            (partition_keys(store.client.prefix, one.partition)[STRUCTURES[one.name]],),
        )
        for one in structures
    ]
    return [int(size) for size in store.client.read_all(reads)]


def read(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """Its rows as schemas.QUEUE."""
    place = "none" if structure.name == "attempts" else structure.name
    for rows in _Reader(store, structure).pages():
        if rows:
            yield _batch(structure.partition, place, rows)


def read_due(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """The ids of a lane and their due times as schemas.DUE."""
    partition = structure.partition
    key = partition_keys(store.client.prefix, partition)[STRUCTURES[structure.name]]
    for page, _ in _scan(store, "ZSCAN", key, ("COUNT", IDS), lambda ids: ()):
        if page:
            ids, scores = zip(*page, strict=True)
            columns = [*_place(partition, ids), _times(scores)]
            yield pa.RecordBatch.from_arrays(columns, schema=schemas.DUE)


class _Reader:
    """The rows of one structure."""

    def __init__(self, store: RedisStore, structure: Structure) -> None:
        self._store = store
        self._name = structure.name
        self._keys = partition_keys(store.client.prefix, structure.partition)
        self._key = self._keys[STRUCTURES[structure.name]]
        self._count = max(1, min(RECORDS, REPLY_BYTES // store.client.settings.body_limit))

    def pages(self) -> Iterator[list[Row]]:
        """Rows of each page; some are empty."""
        others: dict[str, Callable[[], Iterator[list[Row]]]] = {
            "none": self._records, "attempts": self._attempts, "finished": self._finished,
            "follower": self._followers, "done": self._done,
        }  # fmt: skip
        return others.get(self._name, self._places)()

    def _places(self) -> Iterator[list[Row]]:
        """A lane, or the leases."""
        for page, (records, attempts) in self._scan(
            "ZSCAN", lambda ids: [self._in(4, ids), self._in(5, ids)]
        ):
            yield [
                Row(message_id, score, record, attempt is not None)
                for (message_id, score), record, attempt in zip(
                    page, records, attempts, strict=True
                )
            ]

    def _records(self) -> Iterator[list[Row]]:
        """Records of ids that are in no lane and not leased."""
        for page, (*scores, attempts) in self._scan(
            "HSCAN", lambda ids: [*self._scores(ids), self._in(5, ids)]
        ):
            yield [
                Row(message_id, None, record, attempt is not None)
                for (message_id, record), attempt, *places in zip(
                    page.items(), attempts, *scores, strict=True
                )
                if not _anywhere(places)
            ]

    def _attempts(self) -> Iterator[list[Row]]:
        """Attempts of ids that have neither a record nor a place."""
        for page, (*scores, records) in self._scan(
            "HSCAN", lambda ids: [*self._scores(ids), self._in(4, ids)]
        ):
            yield [
                Row(message_id, None, None, True)
                for message_id, record, *places in zip(page, records, *scores, strict=True)
                if record is None and not _anywhere(places)
            ]

    def _followers(self) -> Iterator[list[Row]]:
        for page, (attempts,) in self._scan("HSCAN", lambda ids: [self._in(5, ids)]):
            yield [
                Row(
                    message_id,
                    float(int.from_bytes(value[:6], "big")),
                    value[6:] or None,
                    attempt is not None,
                )
                for (message_id, value), attempt in zip(page.items(), attempts, strict=True)
            ]

    def _done(self) -> Iterator[list[Row]]:
        for page, _ in _scan(
            self._store, "HSCAN", self._key, ("MATCH", "done:*", "COUNT", RECORDS), lambda ids: ()
        ):
            yield [Row(field[5:], stamp=stamp) for field, stamp in page.items()]

    def _finished(self) -> Iterator[list[Row]]:
        """By the ids of the entries: a stream has no cursor."""
        first = "-"
        while first:
            (entries,) = self._store.client.read_all(
                [Read("XRANGE", None, (self._key, first, "+", "COUNT", self._count))]
            )
            yield [
                Row(
                    fields.get(b"id", b""),
                    float(fields.get(b"at") or 0),
                    fields.get(b"record") or None,
                )
                for _, fields in entries
            ]
            first = f"({entries[-1][0].decode()}" if len(entries) == self._count else ""

    def _scan(
        self, command: str, about: Callable[[list[bytes]], Sequence[Read]]
    ) -> Iterator[tuple[Any, list[Any]]]:
        return _scan(self._store, command, self._key, ("COUNT", self._count), about)

    def _in(self, number: int, ids: Sequence[bytes]) -> Read:
        return Read("HMGET", None, (self._keys[number], *ids))

    def _scores(self, ids: Sequence[bytes]) -> list[Read]:
        """Lanes first, then leases: what is claimed meanwhile is seen in one of them."""
        return [Read("ZMSCORE", None, (self._keys[number], *ids)) for number in range(4)]


def _scan(
    store: RedisStore,
    command: str,
    key: str,
    how: Sequence[Any],
    about: Callable[[list[bytes]], Sequence[Read]],
) -> Iterator[tuple[Any, list[Any]]]:
    """Pages of a structure, each with the answers to what is asked about its ids.

    One round trip a page: the next page is asked for together with what is asked about this one.
    """
    (answer,) = store.client.read_all([Read(command, None, (key, 0, *how))])
    while answer:
        cursor, page = answer
        reads = (
            list(about([one if isinstance(one, bytes) else one[0] for one in page])) if page else []
        )
        following = [Read(command, None, (key, cursor, *how))] if cursor else []
        answers = store.client.read_all([*reads, *following]) if reads or following else []
        if page:
            yield page, answers[: len(reads)]
        answer = answers[-1] if following else None


def _anywhere(scores: Sequence[float | None]) -> bool:
    return any(score is not None for score in scores)


# From rows to Arrow


def _batch(partition: Partition, place: str, rows: Sequence[Row]) -> pa.RecordBatch:
    records = [row.record for row in rows]
    stamps = [row.stamp or row.record or b"" for row in rows]
    columns = [
        *_place(partition, [row.id for row in rows]),
        pa.repeat(place, len(rows)),
        _times([row.due_ms for row in rows]),
        pa.array(
            [stamp_us_of(stamp) for stamp in stamps],
            pa.int64(),
        ),
        pa.array([_task_code(one) for one in records], pa.string()),
        pa.array([True if row.stamp else _durable(row.record) for row in rows], pa.bool_()),
        pa.array([row.has_attempts for row in rows], pa.bool_()),
        pa.array(records, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schemas.QUEUE)


def _place(partition: Partition, ids: Sequence[bytes]) -> list[pa.Array]:
    """The columns that all rows begin with."""
    count = len(ids)
    return [
        pa.array([one.hex() for one in ids], pa.string()),
        pa.repeat(partition.topic, count),
        pa.repeat(pa.scalar(partition.number, pa.int32()), count),
    ]


def _times(milliseconds: Sequence[float | None]) -> pa.Array:
    exact = np.array(milliseconds, float)  # None as NaN, which no score is
    missing = np.isnan(exact)
    microseconds = np.rint(np.where(missing, 0.0, np.clip(exact, 0.0, LAST_MS)) * 1000).astype(
        np.int64
    )
    return pa.array(microseconds, mask=missing).cast(schemas.TIME)


def _task_code(record: bytes | None) -> str | None:
    return task_code_of(record).hex() if record and len(record) >= HEADER_END else None


def _durable(record: bytes | None) -> bool | None:
    """As the scripts see it: a record that is too short for the flag is not."""
    return None if record is None else is_durable(record)


def all_of(partitions: Sequence[Partition], names: Sequence[str]) -> list[Structure]:
    """These structures of each partition."""
    return list(chain.from_iterable([Structure(one, name) for name in names] for one in partitions))
