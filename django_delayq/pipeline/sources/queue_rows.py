"""Reads the structures of a partition in Redis as Arrow batches, a page at a time.

It runs on executors, where a store is made from the parameters. It only sends plain commands that
read, so a replica is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ...core.message import HEADER_END, is_durable, stamp_us_of, task_code_of
from ...store.client import Read
from ...store.keys import Partition, partition_keys
from ...store.store import RedisStore
from .. import schemas

#: Most elements of one reply when they are ids and numbers only, and when they are records.
IDS, RECORDS = 5_000, 1_000
#: Most bytes of records in one reply.
REPLY_BYTES = 32 * 1024 * 1024
#: 9999-12-31, the last day of Python's calendar. Later due times, such as infinity, become this.
LAST_MS = 253_402_214_400_000.0

#: HELD of shared/partition.lua.
HELD_MS = 2.0**48

LANES = ("high", "normal", "low")
#: The structures, with the numbers of their keys in partition_keys(). Two of them give rows of the
#: place `none`: the records, and the attempts.
STRUCTURES = {
    "high": 0, "normal": 1, "low": 2, "leased": 3, "none": 4, "attempts": 5, "finished": 6,
    "follower": 7, "done": 8,
}  # fmt: skip
#: The command that counts each of them.
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
    """In place of the stamp of a record."""


def all_of(partitions: Sequence[Partition], names: Sequence[str]) -> list[Structure]:
    """These structures of each partition."""
    return [Structure(partition, name) for partition in partitions for name in names]


def sizes(store: RedisStore, structures: Sequence[Structure]) -> Sequence[int]:
    """How many elements each structure has now."""
    reads = []
    for partition, name in structures:
        number = STRUCTURES[name]
        key = partition_keys(store.client.prefix, partition)[number]
        reads.append(Read(SIZES[number], None, (key,)))
    return [int(size) for size in store.client.read_all(reads)]


def read_structure(store: RedisStore, structure: Structure) -> Iterator[pa.RecordBatch]:
    """Its rows as schemas.QUEUE."""
    partition, name = structure
    place = "none" if name == "attempts" else name
    for rows in _StructureReader(store, structure).pages():
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
    partition, name = structure
    key = partition_keys(store.client.prefix, partition)[STRUCTURES[name]]
    for page, _ in _scan(store, "ZSCAN", key, ("COUNT", IDS), lambda ids: ()):
        ids, scores = zip(*page, strict=True)
        columns = [*_place(partition, ids), _times(scores)]
        yield pa.RecordBatch.from_arrays(columns, schema=schemas.DUE)


class _StructureReader:
    """The rows of one structure."""

    def __init__(self, store: RedisStore, structure: Structure) -> None:
        self._store = store
        self._name = structure.name
        self._keys = partition_keys(store.client.prefix, structure.partition)
        self._key = self._keys[STRUCTURES[structure.name]]
        self._count = max(1, min(RECORDS, REPLY_BYTES // store.client.settings.body_limit))

    def pages(self) -> Iterator[list[Row]]:
        """The rows of each page. A page may have none."""
        others: dict[str, Callable[[], Iterator[list[Row]]]] = {
            "none": self.records, "attempts": self.attempts, "finished": self.finished,
            "follower": self.followers, "done": self.done,
        }  # fmt: skip
        return others.get(self._name, self.places)()

    def places(self) -> Iterator[list[Row]]:
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

    def records(self) -> Iterator[list[Row]]:
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

    def attempts(self) -> Iterator[list[Row]]:
        """Attempts of ids that have neither a record nor a place."""
        for page, (*scores, records) in self._scan(
            "HSCAN", lambda ids: [*self._scores(ids), self._in(4, ids)]
        ):
            yield [
                Row(message_id, None, None, True)
                for message_id, record, *places in zip(page, records, *scores, strict=True)
                if record is None and not _anywhere(places)
            ]

    def followers(self) -> Iterator[list[Row]]:
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

    def done(self) -> Iterator[list[Row]]:
        for page, _ in _scan(
            self._store, "HSCAN", self._key, ("MATCH", "done:*", "COUNT", RECORDS), lambda ids: ()
        ):
            yield [Row(field[5:], stamp=stamp) for field, stamp in page.items()]

    def finished(self) -> Iterator[list[Row]]:
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
    """Pages of a structure that have elements, each with the answers to `about` its ids.

    One round trip a page: the next page is asked for together with the questions about this page.
    """
    (answer,) = store.client.read_all([Read(command, None, (key, 0, *how))])
    while answer:
        cursor, page = answer
        ids = [element if isinstance(element, bytes) else element[0] for element in page]
        reads = list(about(ids)) if page else []
        following = [Read(command, None, (key, cursor, *how))] if cursor else []
        answers = store.client.read_all([*reads, *following]) if reads or following else []
        if page:
            yield page, answers[: len(reads)]
        answer = answers[-1] if following else None


def _anywhere(scores: Sequence[float | None]) -> bool:
    return any(score is not None for score in scores)


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
