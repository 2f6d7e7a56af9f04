"""Reads the structures of a partition in Redis, a page at a time.

It only sends plain commands that read, so a replica is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from .client import Read
from .keys import Partition, partition_keys
from .store import RedisStore

#: Most elements of one reply when they are ids and numbers only, and when they are records.
IDS, RECORDS = 5_000, 1_000
#: Most bytes of records in one reply.
REPLY_BYTES = 32 * 1024 * 1024
#: 9999-12-31, the last day of Python's calendar. Later due times, such as infinity, become this.
LAST_MS = 253_402_214_400_000
#: HELD of shared/partition.lua: what a limit holds back has so much added to its due time.
HELD_MS = 2**48
LANES = ("high", "normal", "low")


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


def partitions_of(store: RedisStore, topics: Collection[str] = ()) -> list[Partition]:
    """The partitions that these topics, or all, have had, and those of the settings, in case Redis
    has lost its list."""
    known = {
        *store.topics.used_partitions(),
        *(
            Partition(topic, number)
            for topic, options in store.client.settings.topics.items()
            for number in range(options.partitions)
        ),
    }
    return sorted(partition for partition in known if not topics or partition.topic in topics)


def all_of(partitions: Sequence[Partition], names: Sequence[str]) -> list[Structure]:
    """These structures of each partition."""
    return [Structure(partition, name) for partition in partitions for name in names]


def sizes(store: RedisStore, structures: Sequence[Structure]) -> Sequence[int]:
    """How many elements each structure has now."""
    reads = []
    for structure in structures:
        reading = STRUCTURES[structure.name]
        key = partition_keys(store.client.prefix, structure.partition)[reading.key]
        reads.append(Read(reading.size, None, (key,)))
    return [int(size) for size in store.client.read_all(reads)]


def read_scores(store: RedisStore, structure: Structure) -> Iterator[list[tuple[bytes, float]]]:
    """Ids and scores of a lane, or of the leases, page by page, without the records."""
    key = partition_keys(store.client.prefix, structure.partition)[STRUCTURES[structure.name].key]
    for page, _ in _scan(store, "ZSCAN", key, ("COUNT", IDS), lambda ids: ()):
        yield page


def place_rows(store: RedisStore, structure: Structure) -> Iterator[list[Row]]:
    """Its rows, page by page. A page may have none."""
    keys = partition_keys(store.client.prefix, structure.partition)
    reading = STRUCTURES[structure.name]
    key = keys[reading.key]
    count = max(1, min(RECORDS, REPLY_BYTES // store.client.settings.body_limit))
    if structure.name == "finished":
        yield from _finished(store, key, count)
        return
    scan = "ZSCAN" if reading.size == "ZCARD" else "HSCAN"
    how = ("MATCH", "done:*", "COUNT", RECORDS) if structure.name == "done" else ("COUNT", count)

    def about(ids: list[bytes]) -> list[Read]:
        return [
            Read("ZMSCORE" if number in _PLACES else "HMGET", None, (keys[number], *ids))
            for number in reading.about
        ]

    for page, answers in _scan(store, scan, key, how, about):
        yield reading.rows(page, *answers)


def _finished(store: RedisStore, key: str, count: int) -> Iterator[list[Row]]:
    """By the ids of the entries: a stream has no cursor."""
    first = "-"
    while first:
        read = Read("XRANGE", None, (key, first, "+", "COUNT", count))
        (entries,) = store.client.read_all([read])
        yield [
            Row(entry.get(b"id", b""), float(entry.get(b"at") or 0), entry.get(b"record") or None)
            for _, entry in entries
        ]
        first = f"({entries[-1][0].decode()}" if len(entries) == count else ""


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


# The rows of a page


def _of_places(page: Any, records: Any, attempts: Any) -> list[Row]:
    """A lane, or the leases."""
    return [
        Row(message_id, score, record, attempt is not None)
        for (message_id, score), record, attempt in zip(page, records, attempts, strict=True)
    ]


def _of_records(page: Any, *answers: Any) -> list[Row]:
    """Records of ids that are in no lane and not leased."""
    *scores, attempts = answers
    return [
        Row(message_id, None, record, attempt is not None)
        for (message_id, record), attempt, *places in zip(
            page.items(), attempts, *scores, strict=True
        )
        if not _anywhere(places)
    ]


def _of_attempts(page: Any, *answers: Any) -> list[Row]:
    """Attempts of ids that have neither a record nor a place."""
    return [
        Row(message_id, None, None, True)
        for message_id, *found in zip(page, *answers, strict=True)
        if not _anywhere(found)
    ]


def _of_followers(page: Any, attempts: Any) -> list[Row]:
    return [
        Row(message_id, float(int.from_bytes(value[:6], "big")), value[6:] or None, one is not None)
        for (message_id, value), one in zip(page.items(), attempts, strict=True)
    ]


def _of_ends(page: Any) -> list[Row]:
    return [Row(field[5:], stamp=stamp) for field, stamp in page.items()]


def _anywhere(found: Sequence[Any]) -> bool:
    return any(one is not None for one in found)


class _Reading(NamedTuple):
    """How a structure is read."""

    key: int
    """The number of its key in partition_keys()."""
    size: str
    """The command that counts it."""
    about: Sequence[int] = ()
    """What is asked about the ids of a page: the numbers of the keys."""
    rows: Callable[..., list[Row]] = list
    """Makes the rows of a page, and of the answers about it."""


#: The lanes first, then the leases: what is claimed meanwhile is seen in one of them.
_PLACES, _RECORDS, _ATTEMPTS = (0, 1, 2, 3), 4, 5
_PLACE = ("ZCARD", (_RECORDS, _ATTEMPTS), _of_places)
#: Two of the structures give rows of the place `none`: the records, and the attempts.
STRUCTURES = {
    "high": _Reading(0, *_PLACE),
    "normal": _Reading(1, *_PLACE),
    "low": _Reading(2, *_PLACE),
    "leased": _Reading(3, *_PLACE),
    "none": _Reading(4, "HLEN", (*_PLACES, _ATTEMPTS), _of_records),
    "attempts": _Reading(5, "HLEN", (*_PLACES, _RECORDS), _of_attempts),
    "finished": _Reading(6, "XLEN"),
    "follower": _Reading(7, "HLEN", (_ATTEMPTS,), _of_followers),
    "done": _Reading(8, "HLEN", (), _of_ends),
}
