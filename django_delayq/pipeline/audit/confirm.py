"""The second look of an audit: by id, at one instant in Redis, and in SQL. What it does not see
again is no difference.

Runs on the driver. Where something may be missing SQL is asked after Redis, where something is
there twice before it: messages move from the outbox to Redis and from there to the archive, so that
none looks so by moving meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from ...core.conf import get_settings
from ...core.times import epoch_us
from ...models import ArchivedMessage, OutboxMessage, OutboxStatus
from ...store.client import BATCH
from ...store.keys import Partition
from ...store.queries import Life
from ...store.repair import Look
from ...store.store import RedisStore
from .finding_kinds import Difference, Kind


def _lanes(look: Look) -> int:
    return sum(due is not None for due in look.lanes)


def _same(found: Difference, look: Look) -> bool:
    """The record is there, and of the same life."""
    return look.recorded and (found.stamp is None or look.stamp_us == found.stamp)


#: Whether what is found is still so. Of what Redis alone can tell.
STILL: Mapping[Kind, Callable[[Difference, Look], bool]] = {
    Kind.NO_RECORD: lambda found, look: not look.recorded and (look.waits or look.leased),
    Kind.NO_PLACE: lambda found, look: _same(found, look) and not look.waits and not look.leased,
    Kind.TWO_LANES: lambda found, look: _lanes(look) > 1,
    Kind.LANE_AND_LEASE: lambda found, look: look.waits and look.leased,
    Kind.WRONG_LANE: lambda found, look: look.recorded
    and not look.leased
    and _lanes(look) == 1
    and look.lanes[look.lane] is None,
    Kind.WRONG_PARTITION: _same,
    Kind.STRAY_ATTEMPTS: lambda found, look: look.has_attempts
    and not (look.recorded or look.waits or look.leased),
    Kind.STRAY_FOLLOWER: lambda found, look: look.follower_us is not None and not look.leased,
    Kind.LOST_END: lambda found, look: look.done_us == found.stamp,
    Kind.STALE_END: lambda found, look: look.done_us == found.stamp,
    Kind.LIVE_AGAIN: lambda found, look: _same(found, look) and not look.leased,
}  # fmt: skip


class SecondLook:
    """At differences of Redis, the outbox and the archive."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def confirmed(self, found: Sequence[Difference]) -> list[Difference]:
        """Those that are still so."""
        by_kind: dict[Kind, list[Difference]] = defaultdict(list)
        for one in found:
            by_kind[one.kind].append(one)
        return [one for kind, some in by_kind.items() for one in self._looks(kind)(some)]

    def _looks(self, kind: Kind) -> Callable[[Sequence[Difference]], Iterable[Difference]]:
        special = {
            Kind.WRONG_PARTITION: self._misplaced,
            Kind.LOST_END: self._ends,
            Kind.STALE_END: self._ends,
            Kind.LIVE_AGAIN: self._live_again,
            Kind.UNCLOSED: self._unclosed,
            Kind.LOST: self._lost,
        }
        return special.get(kind, self._still)

    def _still(self, found: Sequence[Difference]) -> Iterator[Difference]:
        """What Redis says of them now."""
        for partition, some in by_partition(found).items():
            looks = self._store.repair.look(partition, [one.id for one in some])
            yield from (
                one for one, look in zip(some, looks, strict=True) if STILL[one.kind](one, look)
            )

    def _misplaced(self, found: Sequence[Difference]) -> Iterator[Difference]:
        self._store.partitions.forget()
        for one in self._still(found):
            partition = Partition(one.topic, one.partition or 0)
            if partition not in self._store.partitions.candidates(one.topic, one.id):
                yield one

    def _live_again(self, found: Sequence[Difference]) -> Iterator[Difference]:
        known = archived(found)
        return self._still([one for one in found if one.lake or one.life in known])

    def _unclosed(self, found: Sequence[Difference]) -> Iterator[Difference]:
        known, promised = archived(found), outbox_rows(found)
        return (one for one in found if one.life in promised and (one.lake or one.life in known))

    def _lost(self, found: Sequence[Difference]) -> Iterator[Difference]:
        """Neither live nor ended in any partition, and then not archived and still open, and not
        just being sent."""
        missing = [one for one in found if not self._in_redis(one)]
        known, promised = archived(missing), outbox_rows(missing)
        now_ms = self._store.now_us() // 1000
        for one in missing:
            row = promised.get(one.life)
            if (
                row
                and row.status == OutboxStatus.SENT
                and row.relay_at_ms <= now_ms
                and one.life not in known
            ):
                yield one

    def _in_redis(self, found: Difference) -> bool:
        return self._store.durable_status(found.topic, found.life)[1] != "MISSING"

    def _ends(self, found: Sequence[Difference]) -> Iterator[Difference]:
        """An end and its entry of the stream go together: what is remembered before and after all
        of the stream was read, and is not in it, has no entry."""
        before = by_partition(self._still(found))
        untold = [
            one
            for partition, some in before.items()
            for one in _not_in(some, self._store.repair.finished_lives(partition))
        ]
        remembered = list(self._still(untold))
        newest, promised = newest_archived(remembered), newest_promised(remembered)
        for one in remembered:
            stamp, past = one.stamp or 0, newest.get(one.id, 0)
            if one.kind == Kind.STALE_END and (one.lake or past >= stamp):
                yield one
            elif one.kind == Kind.LOST_END and past < stamp and promised.get(one.id, 0) <= stamp:
                yield from [] if self._lives_on(one) else [one]

    def _lives_on(self, found: Difference) -> bool:
        """Whether a newer life of the id is in Redis."""
        (look,) = self._store.repair.look(Partition(found.topic, found.partition or 0), [found.id])
        return max(look.stamp_us or 0, look.follower_us or 0) > (found.stamp or 0)


def _not_in(found: Sequence[Difference], lives: set[Life]) -> list[Difference]:
    return [one for one in found if one.life not in lives]


def by_partition(found: Iterable[Difference]) -> dict[Partition, list[Difference]]:
    """The differences of each partition."""
    parts: dict[Partition, list[Difference]] = defaultdict(list)
    for one in found:
        parts[Partition(one.topic, one.partition or 0)].append(one)
    return parts


# SQL


def archived(found: Sequence[Difference]) -> set[Life]:
    """Which of these lives are in the archive; also other lives of their ids."""
    return set(_archived_lives(found))


def newest_archived(found: Sequence[Difference]) -> dict[bytes, int]:
    """The stamp of the newest archived life of each id."""
    newest: dict[bytes, int] = {}
    for message_id, stamp in _archived_lives(found):
        newest[message_id] = max(stamp, newest.get(message_id, 0))
    return newest


def outbox_rows(found: Sequence[Difference]) -> dict[Life, OutboxMessage]:
    """The rows of the outbox under these ids, by the lives that they are about."""
    rows = OutboxMessage.objects.using(get_settings().database)
    there = (row for ids in _chunks(found) for row in rows.filter(message_id__in=ids))
    return {Life(row.message_id.bytes, row.enqueued_at_us): row for row in there}


def newest_promised(found: Sequence[Difference]) -> dict[bytes, int]:
    """The stamp that the outbox has for each id."""
    return dict(outbox_rows(found).keys())


def _archived_lives(found: Sequence[Difference]) -> Iterator[Life]:
    rows = ArchivedMessage.objects.using(get_settings().database)
    for ids in _chunks(found):
        for message_id, when in rows.filter(message_id__in=ids).values_list(
            "message_id", "enqueued_at"
        ):
            yield Life(message_id.bytes, epoch_us(when))


def _chunks(found: Sequence[Difference]) -> Iterator[Sequence[UUID]]:
    ids = sorted({UUID(hex=one.message_id) for one in found})
    return (ids[at : at + BATCH] for at in range(0, len(ids), BATCH))
