"""One call of everything that reaches the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from django_delayq.core.limits import LimitRule, TopicLimits
from django_delayq.store import finished
from django_delayq.store.bulk_load import BulkLoad
from django_delayq.store.finished import FinishedStream, lengths
from django_delayq.store.queries import Life
from django_delayq.store.repair import Suspect
from django_delayq.store.store import Claimed, RedisStore
from tests.store.factories import (
    CODE,
    DETAIL,
    LIMIT,
    PARTITION,
    STAMP,
    TASKS,
    claim,
    end_leases,
    enqueue,
    follow,
    new_id,
    outgoing,
    send,
    stamped,
)


def whole_life(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """One call of every method that reaches the server."""
    message_id, cancelled = new_id(), new_id()
    yield lambda: send(store, outgoing(message_id), outgoing(cancelled, when="+1000", expires="+5"))
    yield lambda: store.queries.find(PARTITION, [message_id])
    yield lambda: store.queries.list(PARTITION, 1, (1, b""), 5)
    yield lambda: store.reschedule_in(PARTITION, cancelled, "+2000")
    yield lambda: store.edit_in(PARTITION, cancelled, *edited(store, cancelled))
    yield lambda: store.shift(PARTITION, [(Life(cancelled, 1), 1, 2)])
    yield lambda: store.cancel_in(PARTITION, [cancelled])
    yield lambda: store.nack(PARTITION, [(claim(store, message_id), 0, False, DETAIL)])
    yield lambda: store.reschedule_in(PARTITION, message_id, "5")
    yield lambda: store.put_off(PARTITION, [(claim(store, message_id), 0, DETAIL)])
    yield lambda: store.reschedule_in(PARTITION, message_id, "5")
    yield lambda: store.release(PARTITION, store.claim(PARTITION, 1).leases)
    yield lambda: store.extend(PARTITION, [claim(store, message_id)])
    yield lambda: store.cancel_running("orders", claim(store).id)
    yield lambda: follow(store, message_id)
    yield lambda: store.queries.leased_under(PARTITION, bytes(16))
    yield lambda: end_leases(store)
    yield lambda: store.reclaim(PARTITION)
    yield lambda: store.ack(PARTITION, [(store.claim(PARTITION, 1).leases[0], DETAIL)])
    yield lambda: store.reports.ended("orders", message_id)
    yield lambda: enqueue(store)
    yield lambda: store.purge(PARTITION)
    yield lambda: store.progress(claim(store), b"[1]", 60_000)
    yield from limiting(store)
    yield from loading(store)
    yield from archiving(store)
    yield from looking(store)
    yield from auditing(store)


def limiting(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """Two messages under a limit of one: the second goes when the first has ended."""
    limits = TopicLimits(LimitRule("1/s", 5), "1/s", {CODE: LimitRule("1/h", 1)})

    def claim_limited() -> Claimed:
        return store.claim_limited(PARTITION, 5, None, limits)

    yield lambda: send(store, outgoing(limit=LIMIT), outgoing(limit=LIMIT))
    yield lambda: store.ack(PARTITION, [(claim_limited().leases[0], DETAIL)])
    yield claim_limited
    yield lambda: store.queries.holding_back([PARTITION])
    yield lambda: store.purge(PARTITION)


def loading(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """A bulk load."""
    load, message = BulkLoad("night", "1"), outgoing()

    def send_load() -> Any:
        return store.bulk_load.load(PARTITION, load, 0, TASKS, [(message[0], *message[2:])])()()

    yield send_load
    yield lambda: store.bulk_load.fences([PARTITION], "night")[0]
    yield lambda: store.bulk_load.left(PARTITION, "night", [(0, bytes(16))])


def archiving(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """What becomes of what has ended."""
    message_id, stream = new_id(), FinishedStream(store, PARTITION, "archiver")
    yield lambda: store.queries.durable_status(PARTITION, [(message_id, STAMP)])
    yield lambda: store.tombstone(PARTITION, new_id(), stamped())
    yield lambda: stream.remove(stream.read())
    yield lambda: take_over_at_once(FinishedStream(store, PARTITION, "another"))
    yield lambda: lengths(store, [PARTITION])
    yield store.topics.used_partitions
    yield store.now_us


def auditing(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """What an audit does."""
    yield lambda: list(store.queries.records(PARTITION))
    yield lambda: store.repair.diagnose(PARTITION, [new_id()])
    yield lambda: store.repair.check(PARTITION, "no_attempts", [Suspect(new_id())])
    yield lambda: store.repair.mend(PARTITION, "stray_attempts", [Suspect(new_id())])
    yield lambda: store.repair.finished_lives(PARTITION)


def looking(store: RedisStore) -> Iterator[Callable[[], Any]]:
    """What changes no message."""
    yield lambda: store.queries.stats(PARTITION)
    yield lambda: store.queries.all_stats([PARTITION])
    yield lambda: store.queries.holders([(PARTITION, 5)])
    yield lambda: store.topics.pause("orders", "{}")
    yield lambda: store.topics.pause("orders", "{}", 9_000_000_000_000)
    yield lambda: store.topics.resume("orders")
    yield store.topics.names
    yield lambda: store.workers.acquire_lock("sample", 55_000)
    yield lambda: store.workers.add_sample(1, {})
    yield lambda: store.workers.quiet("worker")
    yield lambda: store.workers.is_quiet("worker")
    yield lambda: store.queries.snapshot([PARTITION], [0], 5)
    yield lambda: store.workers.unquiet("worker")
    yield lambda: store.workers.beat("worker", "{}")
    yield store.workers.heartbeats
    yield lambda: store.workers.forget("worker")
    yield lambda: store.queries.task_name(PARTITION, b"code")
    yield lambda: store.queries.counters([PARTITION])
    yield lambda: store.queries.oldest_lease_ms(PARTITION)
    yield store.clock_ms


def edited(store: RedisStore, message_id: bytes) -> tuple[bytes, bytes]:
    """The record of a waiting message, and the same with other arguments."""
    (found,) = store.queries.find(PARTITION, [message_id])
    assert found
    return found.record, found.record + b" "


def take_over_at_once(stream: FinishedStream) -> None:
    """As if everybody else were long dead."""
    with mock.patch.object(finished, "FORGET_AFTER_MS", -1):
        stream.take_over()
