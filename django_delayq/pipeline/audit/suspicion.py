"""Finds candidates of an audit in one process: Redis, the outbox and the archive are read page by
page, in bounded memory.

What is damaged in Redis, Redis says itself (store/lua/shared/damages.lua). A candidate may be a
message that moved meanwhile: confirm.py decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from uuid import UUID

from django.db.models import QuerySet

from ...core.chunks import chunked
from ...core.message import stamp_us_of
from ...core.times import epoch_us
from ...models import ArchivedMessage, OutboxMessage, OutboxStatus
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.queries import Life
from ...store.store import RedisStore
from ..sources import structures
from ..sources.structures import LANES, Structure
from .findings import KINDS, Finding, FindingKind

#: Structures that are read, in the order in which messages move: what is claimed meanwhile is seen.
READ = (*LANES, "leased", "none", "attempts", "follower", "done")
#: Rows of the outbox of one query.
PAGE = 500

Progress = Callable[[int, int], object]
"""Takes how many ids and rows are done, and of about how many."""


def suspected(store: RedisStore, topics: Collection[str], progress: Progress) -> Iterator[Finding]:
    """All of these topics, or of all; a message may come twice."""
    store.partitions.forget()
    partitions = structures.partitions_of(store, topics)
    of_topics = {"topic__in": topics} if topics else {}
    outbox = OutboxMessage.objects.filter(**of_topics)
    chosen = structures.all_of(partitions, READ)
    sizes = structures.sizes(store, chosen)
    done, total = 0, outbox.count() + sum(sizes)
    # The outbox first: messages move from there to Redis, and on to the archive.
    for rows in _pages_of(outbox):
        yield from _of_outbox(store, rows)
        done += len(rows)
        progress(done, total)
    for structure, size in zip(chosen, sizes, strict=True):
        passed = 0
        for count, found in _of_structure(store, structure):
            yield from found
            passed += count
            progress(done + min(passed, size), total)
        done += size
    progress(total, total)


def _pages_of(outbox: QuerySet[OutboxMessage]) -> Iterator[Sequence[OutboxMessage]]:
    after = 0
    while rows := list(outbox.filter(pk__gt=after).order_by("pk")[:PAGE]):
        yield rows
        after = rows[-1].pk


def _of_outbox(store: RedisStore, rows: Sequence[OutboxMessage]) -> Iterator[Finding]:
    """Rows whose life is archived, and rows that were sent and are nowhere."""
    lives = {Life(row.message_id.bytes, row.enqueued_at_us): row for row in rows}
    now_ms = store.now_us() // 1000
    sent = {
        life: row
        for life, row in lives.items()
        if row.status == OutboxStatus.SENT and row.relay_at_ms <= now_ms
    }
    missing = store.missing((row.topic, life) for life, row in sent.items())
    archived = archived_lives({life.id for life in lives})
    for life, row in lives.items():
        if life in archived:
            yield _finding(FindingKind.UNCLOSED, Partition(row.topic, 0), life)
        elif life in missing:
            yield _finding(FindingKind.LOST, Partition(row.topic, 0), life)


def _of_structure(
    store: RedisStore, structure: Structure
) -> Iterator[tuple[int, Iterable[Finding]]]:
    """Per page, how many elements were read, and what was found."""
    partition, name = structure
    if name in (*LANES, "leased"):
        for page in structures.read_scores(store, structure):
            ids = [message_id for message_id, _ in page]
            waits = name != "leased"
            yield len(page), _of_ids(store, partition, ids, waits=waits)
        return
    if name == "done":
        yield from _of_ends(store, structure)
        return
    for rows in structures.place_rows(store, structure):
        if rows:
            ids = [row.id for row in rows]
            yield len(rows), _of_ids(store, partition, ids, waits=name == "none")


def _of_ids(
    store: RedisStore, partition: Partition, ids: Sequence[bytes], *, waits: bool
) -> Iterator[Finding]:
    """What Redis finds damaged, what is in a wrong partition, and, of what waits or has no place,
    what is archived."""
    for message_id, stamp_us, damages in store.repair.diagnose(partition, ids):
        for damage in damages:
            yield Finding(
                KINDS[damage], partition.topic, partition.number, message_id.hex(), stamp_us
            )
    counts = store.partitions.counts(partition.topic)
    strays = [
        message_id
        for message_id in ids
        if all(
            int.from_bytes(message_id[-4:], "big") % count != partition.number for count in counts
        )
    ]
    for message_id, found in zip(strays, _found(store, partition, strays), strict=True):
        if found is not None:
            life = Life(message_id, stamp_us_of(found) or 0)
            yield _finding(FindingKind.WRONG_PARTITION, partition, life)
    if waits:
        yield from _live_again(store, partition, ids)


def _live_again(store: RedisStore, partition: Partition, ids: Sequence[bytes]) -> Iterator[Finding]:
    # SQL first: there are few records to read then.
    past = archived_lives(ids)
    known = sorted({life.id for life in past})
    for message_id, record in zip(known, _found(store, partition, known), strict=True):
        life = Life(message_id, stamp_us_of(record or b"") or 0)
        if life in past:
            yield _finding(FindingKind.LIVE_AGAIN, partition, life)


def _of_ends(store: RedisStore, structure: Structure) -> Iterator[tuple[int, Iterable[Finding]]]:
    """Ends that Redis remembers: those that are archived, and those that are not in the finished
    stream either."""
    partition, told = structure.partition, None
    for rows in structures.place_rows(store, structure):
        lives = [Life(row.id, stamp_us_of(row.stamp or b"") or 0) for row in rows]
        newest = dict(sorted(archived_lives({life.id for life in lives})))  # the last one stays
        stale = [life for life in lives if newest.get(life.id, -1) >= life.stamp_us]
        rest = set(lives) - set(stale)
        if rest and told is None:
            told = store.repair.finished_lives(partition)
        found = [_finding(FindingKind.STALE_END, partition, life) for life in stale]
        found += [
            _finding(FindingKind.LOST_END, partition, life)
            for life in sorted(rest - (told or set()))
        ]
        yield len(rows), found


def _finding(kind: FindingKind, partition: Partition, life: Life) -> Finding:
    return Finding(kind, partition.topic, partition.number, life.id.hex(), life.stamp_us)


def _found(store: RedisStore, partition: Partition, ids: Sequence[bytes]) -> Iterator[bytes | None]:
    """The record of each, if it is live."""
    for page in chunked(ids, BATCH):
        for found in store.queries.find(partition, page):
            yield None if found is None else found.record


def archived_lives(ids: Collection[bytes]) -> set[Life]:
    """The archived lives of these messages."""
    return {
        Life(message_id.bytes, epoch_us(enqueued_at))
        for page in chunked(sorted(ids), BATCH)
        for message_id, enqueued_at in ArchivedMessage.objects.filter(
            message_id__in=[UUID(bytes=message_id) for message_id in page]
        ).values_list("message_id", "enqueued_at")
    }
