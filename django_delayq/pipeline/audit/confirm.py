"""Checks each finding once more, by id: at one instant in Redis, and in SQL. A finding that is not
there any more is dropped.

Runs on the driver. Messages move from the outbox to Redis and from there to the archive. So SQL is
asked after Redis where something may be missing, and before it where something is there twice: then
no message looks damaged because it moves meanwhile.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from ...core.chunks import chunked
from ...core.message import stamp_us_of
from ...models import OutboxMessage, OutboxStatus
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.queries import Life
from ...store.store import RedisStore
from .findings import Finding, FindingKind
from .suspicion import archived_lives


def wait(seconds: float) -> None:
    """The pause before candidates are checked again."""
    time.sleep(seconds)


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
        damage = findings[0].kind.damage
        assert damage
        words = store.repair.check(partition, damage, [finding.suspect() for finding in findings])
        yield from (finding for finding, word in zip(findings, words, strict=True) if word)


def _misplaced(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    store.partitions.forget()
    for partition, findings in by_partition(found).items():
        for batch in chunked(findings, BATCH):
            lives = store.queries.find(partition, [finding.id for finding in batch])
            for finding, live in zip(batch, lives, strict=True):
                there = live and finding.stamp in (None, stamp_us_of(live.record))
                if there and partition not in store.partitions.candidates(
                    finding.topic, finding.id
                ):
                    yield finding


def _live_again(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    archived = lives_of(found)
    return _still_damaged(
        store, [finding for finding in found if finding.lake or finding.life in archived]
    )


def _unclosed(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    archived, promised = lives_of(found), outbox_rows(found)
    return (
        finding
        for finding in found
        if finding.life in promised and (finding.lake or finding.life in archived)
    )


def _lost(store: RedisStore, found: Sequence[Finding]) -> Iterator[Finding]:
    """Neither live nor ended in any partition, and after that not archived and still open, and not
    just being sent."""
    missing = [
        finding
        for finding in found
        if store.durable_status(finding.topic, finding.life)[1] == "MISSING"
    ]
    archived, promised = lives_of(missing), outbox_rows(missing)
    now_ms = store.now_us() // 1000
    for finding in missing:
        row = promised.get(finding.life)
        sent = row and row.status == OutboxStatus.SENT and row.relay_at_ms <= now_ms
        if sent and finding.life not in archived:
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
        stamp, archived = finding.stamp or 0, newest.get(finding.id, 0)
        if finding.kind == FindingKind.STALE_END:
            confirmed = finding.lake or archived >= stamp
        else:
            confirmed = archived < stamp and promised.get(finding.id, 0) <= stamp
        if confirmed:
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
        parts[Partition(finding.topic, finding.partition or 0)].append(finding)
    return parts


# SQL


def lives_of(found: Sequence[Finding]) -> set[Life]:
    """The archived lives of all ids that were found."""
    return archived_lives({finding.id for finding in found})


def outbox_rows(found: Sequence[Finding]) -> dict[Life, OutboxMessage]:
    """The rows of the outbox under these ids, by the lives that they are about."""
    return {
        Life(row.message_id.bytes, row.enqueued_at_us): row
        for ids in _pages_of_ids(found)
        for row in OutboxMessage.objects.filter(message_id__in=ids)
    }


def _pages_of_ids(found: Sequence[Finding]) -> Iterator[Sequence[UUID]]:
    return chunked(sorted({UUID(hex=finding.message_id) for finding in found}), BATCH)
