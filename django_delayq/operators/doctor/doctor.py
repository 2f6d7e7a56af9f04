"""Compares Redis, the outbox and the archive in one process, without Spark, and repairs: page by
page, in bounded memory.

The audit on Spark, for sizes that one process does not master, has the same kinds, second look and
repairs. What is damaged in Redis, Redis says itself (store/lua/shared/damages.lua).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from django.db.models import QuerySet

from ...core.job_report import Report, Tell, ignore
from ...core.message import stamp_us_of
from ...models import OutboxMessage
from ...store import structures
from ...store.keys import Partition
from ...store.queries import Life
from ...store.store import RedisStore
from ...store.structures import LANES, Structure
from .conclusion import Looks, conclude, note_left
from .findings import Candidates, Finding, FindingKind
from .second_look import archived_lives, lives_in, was_sent

#: Structures that are read, in the order in which messages move: what is claimed meanwhile is seen.
READ = (*LANES, "leased", "none", "attempts", "follower", "done")
#: Rows of the outbox of one query.
PAGE = 500


def examine(store: RedisStore, looks: Looks, topic: str = "", tell: Tell = ignore) -> Report:
    """Find candidates, check them again after the pause, and repair them if that is wanted.

    `topic`: only this one. The code is DIFFERENT when there were differences, also when all are
    repaired: the next look is clean then. Raises StoreUnavailable and errors of the database.
    """
    begun = time.monotonic()
    report = Report(job="doctor")
    kept: dict[Finding, None] = {}
    counts = Counter[FindingKind]()
    for finding in suspected(store, topic, report, tell):
        if finding not in kept:  # else an id in two structures, or a scan that returns it twice
            counts[finding.kind] += 1
            if counts[finding.kind] <= looks.most:
                kept[finding] = None
    left = conclude(store, Candidates(list(kept), counts), looks, report, tell)
    if not topic:
        note_left(left)
    report.figures["seconds"] = round(time.monotonic() - begun, 3)
    return report


def suspected(store: RedisStore, topic: str, report: Report, tell: Tell) -> Iterator[Finding]:
    """Candidates of this topic, or of all; one may come twice, and may be a message that moved
    meanwhile."""
    store.partitions.forget()
    outbox = OutboxMessage.objects.filter(**{"topic": topic} if topic else {})
    partitions = structures.partitions_of(store, [topic] if topic else ())
    chosen = structures.all_of(partitions, READ)
    sizes = structures.sizes(store, chosen)
    done, total = 0, outbox.count() + sum(sizes)
    report.figures["read"] = total

    def progress(read: int) -> None:
        read = min(read, total)
        tell(f"{read:,} ids and rows read", read, total)

    # The outbox first: messages move from there to Redis, and on to the archive.
    for rows in _pages_of(outbox):
        yield from _of_outbox(store, rows)
        done += len(rows)
        progress(done)
    for structure, size in zip(chosen, sizes, strict=True):
        passed = 0
        for count, found in _of_structure(store, structure):
            yield from found
            passed += count
            progress(done + min(passed, size))
        done += size
    progress(total)


def _pages_of(outbox: QuerySet[OutboxMessage]) -> Iterator[Sequence[OutboxMessage]]:
    after = 0
    while rows := list(outbox.filter(pk__gt=after).order_by("pk")[:PAGE]):
        yield rows
        after = rows[-1].pk


def _of_outbox(store: RedisStore, rows: Sequence[OutboxMessage]) -> Iterator[Finding]:
    """Rows whose life is archived, and rows that were sent and are nowhere."""
    now_ms = store.now_us() // 1000
    lives = {Life(row.message_id.bytes, row.enqueued_at_us): row for row in rows}
    missing = store.missing(
        (row.topic, life) for life, row in lives.items() if was_sent(row, now_ms)
    )
    archived = archived_lives({life.id for life in lives})
    for life, row in lives.items():
        if life in archived:
            yield Finding(FindingKind.UNCLOSED, Partition(row.topic, 0), life)
        elif life in missing:
            yield Finding(FindingKind.LOST, Partition(row.topic, 0), life)


def _of_structure(
    store: RedisStore, structure: Structure
) -> Iterator[tuple[int, Iterable[Finding]]]:
    """Per page, how many elements were read, and what was found."""
    partition, name = structure
    if name == "done":
        yield from _of_ends(store, structure)
    elif name in (*LANES, "leased"):
        for page in structures.read_scores(store, structure):
            ids = [message_id for message_id, _ in page]
            yield len(page), _of_ids(store, partition, ids, waits=name != "leased")
    else:
        for rows in structures.place_rows(store, structure):
            ids = [row.id for row in rows]
            yield len(rows), _of_ids(store, partition, ids, waits=name == "none")


def _of_ids(
    store: RedisStore, partition: Partition, ids: Sequence[bytes], *, waits: bool
) -> Iterator[Finding]:
    """What Redis finds damaged, what is in a wrong partition, and, of what waits or has no place,
    what is archived."""
    topic, number = partition
    for message_id, stamp_us, damages in store.repair.diagnose(partition, ids):
        life = Life(message_id, stamp_us or 0)
        for damage in damages:
            yield Finding(FindingKind.of_damage(damage), partition, life)
    counts = store.partitions.counts(topic)
    strays = [
        message_id
        for message_id in ids
        if all(int.from_bytes(message_id[-4:], "big") % count != number for count in counts)
    ]
    for life in lives_in(store, partition, strays):
        yield Finding(FindingKind.WRONG_PARTITION, partition, life)
    if waits:
        past = archived_lives(ids)  # SQL first: there are few records to read then
        for life in lives_in(store, partition, sorted({life.id for life in past})):
            if life in past:
                yield Finding(FindingKind.LIVE_AGAIN, partition, life)


def _of_ends(store: RedisStore, structure: Structure) -> Iterator[tuple[int, Iterable[Finding]]]:
    """Ends that Redis remembers: those that are archived, and those that are not in the finished
    stream either."""
    partition, told = structure.partition, None
    for rows in structures.place_rows(store, structure):
        lives = {Life(row.id, stamp_us_of(row.stamp or b"") or 0) for row in rows}
        newest = dict(sorted(archived_lives({life.id for life in lives})))  # the last one stays
        stale = {life for life in lives if newest.get(life.id, -1) >= life.stamp_us}
        if lives != stale and told is None:
            told = store.repair.finished_lives(partition)
        lost = lives - stale - (told or set())
        found = [Finding(FindingKind.STALE_END, partition, life) for life in sorted(stale)]
        found += [Finding(FindingKind.LOST_END, partition, life) for life in sorted(lost)]
        yield len(rows), found
