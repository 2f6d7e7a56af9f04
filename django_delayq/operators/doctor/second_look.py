"""Checks each finding once more, by id: at one instant in Redis, and in SQL. A finding that is not
there any more is dropped.

Runs on the driver. Messages move from the outbox to Redis and from there to the archive. So SQL is
asked after Redis where something may be missing, and before it where something is there twice: then
no message looks damaged because it moves meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from ...core.chunks import chunked
from ...core.message import stamp_us_of
from ...core.times import epoch_us
from ...models import ArchivedMessage, OutboxMessage, OutboxStatus
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.queries import Life
from ...store.store import RedisStore
from .findings import Finding, FindingKind


def confirmed(store: RedisStore, found: Sequence[Finding]) -> list[Finding]:
    """The findings about Redis, the outbox and the archive that are still there."""
    return [
        finding
        for kind in FindingKind
        for finding in _SPECIAL.get(kind, _still_damaged)(
            store, [finding for finding in found if finding.kind == kind]
        )
    ]


def _still_damaged(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    """Those of one kind that Redis finds damaged now."""
    for partition, findings in by_partition(found).items():
        suspects = [finding.suspect() for finding in findings]
        words = store.repair.check(partition, findings[0].kind.damage, suspects)
        yield from (finding for finding, word in zip(findings, words, strict=True) if word)


def _misplaced(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    store.partitions.forget()
    for partition, findings in by_partition(found).items():
        lives = dict(lives_in(store, partition, (finding.life.id for finding in findings)))
        for finding in findings:
            topic, (message_id, stamp_us) = partition.topic, finding.life
            there = message_id in lives and stamp_us in (0, lives[message_id])
            if there and partition not in store.partitions.candidates(topic, message_id):
                yield finding


def _live_again(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    return _still_damaged(store, _archived(found))


def _unclosed(_: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    """Lives of the outbox that are archived."""
    archived = _archived(found)
    promised = outbox_rows(archived)
    return (finding for finding in archived if finding.life in promised)


def _lost(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    """Neither live nor ended in any partition, and after that not archived and still open, and not
    just being sent."""
    nowhere = store.missing((finding.partition.topic, finding.life) for finding in found)
    missing = [finding for finding in found if finding.life in nowhere]
    archived, promised = lives_of(missing), outbox_rows(missing)
    now_ms = store.now_us() // 1000
    for finding in missing:
        row = promised.get(finding.life)
        if row and was_sent(row, now_ms) and finding.life not in archived:
            yield finding


def _ends(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    """An end and its entry of the stream go together: an end that is remembered before and after
    all of the stream was read, and is not in it, has no entry."""
    untold: list[Finding] = []
    for partition, findings in by_partition(_still_damaged(store, found)).items():
        finished = store.repair.finished_lives(partition)
        untold += [finding for finding in findings if finding.life not in finished]
    remembered = list(_still_damaged(store, untold))
    # By id: of several lives the newest stays.
    newest = dict(sorted(lives_of(remembered)))
    promised = dict(outbox_rows(remembered).keys())
    for finding in remembered:
        message_id, stamp_us = finding.life
        archived = newest.get(message_id, 0)
        if finding.kind == FindingKind.STALE_END:
            still_there = finding.lake or archived >= stamp_us
        else:
            still_there = archived < stamp_us and promised.get(message_id, 0) <= stamp_us
        if still_there:
            yield finding


#: The kinds about which Redis alone cannot tell.
_SPECIAL: Mapping[FindingKind, Callable[[RedisStore, Sequence[Finding]], Iterator[Finding]]] = {
    FindingKind.WRONG_PARTITION: _misplaced,
    FindingKind.LOST_END: _ends,
    FindingKind.STALE_END: _ends,
    FindingKind.LIVE_AGAIN: _live_again,
    FindingKind.UNCLOSED: _unclosed,
    FindingKind.LOST: _lost,
}


def by_partition(found: Iterable[Finding]) -> dict[Partition, list[Finding]]:
    """The findings of each partition."""
    parts: dict[Partition, list[Finding]] = defaultdict(list)
    for finding in found:
        parts[finding.partition].append(finding)
    return parts


def lives_in(store: RedisStore, partition: Partition, ids: Iterable[bytes]) -> Iterator[Life]:
    """The live messages among these."""
    for page in chunked(ids, BATCH):
        for found in store.queries.find(partition, page):
            if found is not None:
                yield Life(found.id, stamp_us_of(found.record) or 0)


# SQL


def was_sent(row: OutboxMessage, now_ms: int) -> bool:
    """Whether the row was sent, and is not just being sent again."""
    return row.status == OutboxStatus.SENT and row.relay_at_ms <= now_ms


def archived_lives(ids: Iterable[bytes]) -> set[Life]:
    """The archived lives of these messages."""
    return {
        Life(message_id.bytes, epoch_us(enqueued_at))
        for page in chunked(sorted(ids), BATCH)
        for message_id, enqueued_at in ArchivedMessage.objects.filter(
            message_id__in=[UUID(bytes=message_id) for message_id in page]
        ).values_list("message_id", "enqueued_at")
    }


def lives_of(found: Iterable[Finding]) -> set[Life]:
    """The archived lives of all ids that were found."""
    return archived_lives({finding.life.id for finding in found})


def _archived(found: Sequence[Finding]) -> list[Finding]:
    """Those whose lives the archive has, or only the lake."""
    archived = lives_of(found)
    return [finding for finding in found if finding.lake or finding.life in archived]


def outbox_rows(found: Iterable[Finding]) -> dict[Life, OutboxMessage]:
    """The rows of the outbox under these ids, by the lives that they are about."""
    return {
        Life(row.message_id.bytes, row.enqueued_at_us): row
        for page in chunked(sorted({finding.life.id for finding in found}), BATCH)
        for row in OutboxMessage.objects.filter(message_id__in=[UUID(bytes=one) for one in page])
    }
