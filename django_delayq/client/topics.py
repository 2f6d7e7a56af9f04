"""Operations on a topic: statistics, pause, resume, move, list, and the steps of a purge."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from ..core import signals
from ..core.cursors import cursor_of, numbers_of
from ..core.exceptions import InvalidDelay
from ..core.message import Message, Page, Priority, State
from ..core.times import instant_ms, now_ms, shown_instant
from ..outbox.existing import check_existing
from ..store import get_store
from ..store.client import BATCH
from ..store.topic_state import TopicStats, stats_of_topic
from ..tasks.naming import shown

if TYPE_CHECKING:
    from .moving import Moved


@dataclass(frozen=True, kw_only=True)
class Running:
    """A leased message: a worker runs it, or the worker that held it has died."""

    message: Message
    lease_until: datetime
    """When another worker may claim it. The worker extends the lease while the task runs."""
    since: datetime | None
    """When it was claimed. None after the first run, because Redis keeps only the first claim."""


def topic_stats(topic: str) -> TopicStats:
    """Counts by state, backlog, lag and next due time. Raises UnknownTopic."""
    store = get_store()
    return stats_of_topic(
        topic, store.queries.all_stats(store.partitions.all(check_existing(topic)))
    )


def pause_topic(
    topic: str, *, by: str = "", reason: str = "", until: datetime | None = None
) -> None:
    """Hold a topic: what runs goes on, nothing more is claimed. At `until` (aware) it goes on by
    itself.

    Raises UnknownTopic, and InvalidMessage for an `until` that is naive, past or more than ten
    years ahead.
    """
    until_ms = None if until is None else instant_ms(until, "until")
    if until_ms is not None and until_ms <= get_store().now_us() // 1000:
        raise InvalidDelay(f"until is {until:%Y-%m-%d %H:%M:%S %Z}: that has passed.")
    note = {"by": by, "reason": reason, "at": now_ms(), "until": until_ms}
    get_store().topics.pause(check_existing(topic), json.dumps(note), until_ms)
    signals.report(signals.topic_paused, topic, [signals.Event("", reason=reason)])


def resume_topic(topic: str) -> None:
    """Let a paused topic go on. Raises UnknownTopic."""
    get_store().topics.resume(check_existing(topic))
    signals.report(signals.topic_resumed, topic, [signals.Event("")])


def move_topic(topic: str, to: str) -> Moved:
    """Move all that waits in a topic, in Redis and in the outbox, to another one that is declared;
    what runs stays.

    What is moved keeps its due time, attempts and key, and its id if it has no key: with one the id
    is that of the key in the other topic. Done again, it goes on where it was. Raises UnknownTopic,
    and InvalidMessage while somebody else moves the topic.
    """
    from . import moving  # not above: see purge_batches()

    return moving.move_topic(topic, to)


def purge_batches(topic: str, reason: str, most: float = math.inf) -> Iterator[int]:
    """Cancel everything that waits in a topic, of at most so many messages: gives how many each
    batch of up to 500 has ended. Raises UnknownTopic."""
    # Not above: models need the apps, and the package's own namespace imports this module.
    from ..outbox import lookup

    store, partitions = get_store(), get_store().partitions.all(check_existing(topic))
    # The outbox first: messages that the relay moves to Redis meanwhile are purged there.
    for kept in lookup.purge(topic, reason, most):
        signals.report(
            signals.cancelled,
            topic,
            [signals.Event(message_id, reason=reason) for message_id in kept],
        )
        most -= len(kept)
        yield len(kept)
    for partition in partitions:
        # Only as many as wait now: with those that are enqueued meanwhile, a busy topic would never
        # end.
        left = min(store.queries.stats(partition).waiting, most)
        while left > 0 and (ids := store.purge(partition, int(min(left, BATCH)), reason)):
            signals.report_ids(signals.cancelled, topic, ids, reason)
            left -= len(ids)
            most -= len(ids)
            yield len(ids)


def list_messages(topic: str, *, cursor: str | None = None, limit: int = 100) -> Page:
    """One page of waiting messages by due time, at most 500. The cost does not grow with the queue
    or the depth.

    Raises UnknownTopic, and InvalidMessage for a cursor that is not ours.
    """
    store, limit = get_store(), max(1, min(limit, BATCH))
    after: tuple[int, bytes] | None = None
    if cursor is not None:
        due_ms, number = numbers_of(cursor, 2**63, 2**128)
        after = due_ms, number.to_bytes(16, "big")
    lanes = [
        [(partition, found) for found in store.queries.list(partition, lane, after, limit)]
        for partition in store.partitions.all(check_existing(topic))
        for lane in Priority
    ]
    merged = heapq.merge(*lanes, key=lambda pair: (pair[1].due_at_ms, pair[1].id))
    page = [pair for pair, _ in zip(merged, range(limit), strict=False)]
    last = page[-1][1] if len(page) == limit else None
    return Page(
        messages=[shown(partition, found) for partition, found in page],
        cursor=cursor_of(last.due_at_ms, int.from_bytes(last.id, "big")) if last else None,
    )


def list_running(topic: str, *, limit: int = 50) -> list[Running]:
    """The leased messages of a topic whose leases end first, at most 500. The cost does not grow
    with the topic.

    Two reads: one that ends between them is left out. Raises UnknownTopic.
    """
    store, limit = get_store(), max(1, min(limit, BATCH))
    leases = store.queries.leases(store.partitions.all(check_existing(topic)), limit)[:limit]
    running: list[Running] = []
    for lease, found in zip(leases, store.queries.find_leased(leases), strict=True):
        if found and found.state == State.LEASED:
            attempts, since = found.attempts, None
            if attempts and attempts.attempt == 1 and not attempts.crashes and not attempts.runs:
                since = shown_instant(attempts.first_claimed_at_ms)
            running.append(
                Running(
                    message=shown(lease.partition, found),
                    lease_until=shown_instant(lease.deadline_ms),
                    since=since,
                )
            )
    return running
