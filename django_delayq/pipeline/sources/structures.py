"""Reads the structures of a partition in Redis, a page at a time.

It only sends plain commands that read, so a replica is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ...store.client import Read
from ...store.keys import Partition, partition_keys
from ...store.store import RedisStore

#: Most elements of one reply when they are ids and numbers only, and when they are records.
IDS, RECORDS = 5_000, 1_000
#: Most bytes of records in one reply.
REPLY_BYTES = 32 * 1024 * 1024
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
    for partition, name in structures:
        number = STRUCTURES[name]
        key = partition_keys(store.client.prefix, partition)[number]
        reads.append(Read(SIZES[number], None, (key,)))
    return [int(size) for size in store.client.read_all(reads)]


def place_rows(store: RedisStore, structure: Structure) -> Iterator[list[Row]]:
    """Its rows, page by page. A page may have none."""
    return _StructureReader(store, structure).pages()


def read_scores(store: RedisStore, structure: Structure) -> Iterator[list[tuple[bytes, float]]]:
    """Ids and scores of a lane, or of the leases, page by page, without the records."""
    key = partition_keys(store.client.prefix, structure.partition)[STRUCTURES[structure.name]]
    for page, _ in _scan(store, "ZSCAN", key, ("COUNT", IDS), lambda ids: ()):
        yield page


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
