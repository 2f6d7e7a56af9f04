"""A worker and the services beside it, driven by hand: nothing happens before a test says so, and
nobody sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils.timezone import make_naive

from django_delayq.archive import exactly_once
from django_delayq.archive.archiver import Archiver
from django_delayq.client.handle import Handle
from django_delayq.core.conf import get_settings
from django_delayq.core.message import HEADER, STAMP, new_id, task_code
from django_delayq.models import ArchivedMessage, OutboxMessage
from django_delayq.outbox.reconciler import Reconciler
from django_delayq.outbox.relay import Relay
from django_delayq.store import get_store, keys
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.executor import Executor
from django_delayq.worker.settler import Settler
from django_delayq.worker.shared import Shared

PAST = "1000000000000"
DAY = 86_400
ORDERS = Partition("orders", 0)
DEFAULT = Partition("default", 0)


class Hands:
    """Claims, runs, settles, archives, relays and reconciles."""

    def __init__(self, store: RedisStore, name: str = "host:1:hands") -> None:
        self.store = store
        topics = tuple(sorted(registry.known_topics()))
        self.shared = Shared(store, get_settings(), name, topics, perform_once=exactly_once.perform)
        self.shared.clock.sync(int(store.clock_ms() * 1000))
        self.settler = Settler(self.shared, lambda outcomes: None)
        self.executor = Executor(self.shared, self.settler.put)
        self.archiver = Archiver(store, name)
        self.relayer = Relay(store)
        self.reconciler = Reconciler(store)

    def claim(self, partition: Partition = DEFAULT) -> list[Lease]:
        """The leases of all that is due."""
        self._next_millisecond()
        leases = self.store.claim(partition, 500).leases
        self.shared.held.update(leases)
        return leases

    def run(self, *leases: Lease) -> None:
        """Run them and settle."""
        for lease in leases:
            self.executor.run(lease)
        self.settler.run_once()

    def work(self, partition: Partition = DEFAULT) -> int:
        """Claim and run all that is due. Returns how many."""
        leases = self.claim(partition)
        self.run(*leases)
        return len(leases)

    def archive(self) -> list[ArchivedMessage]:
        """Archive all that has ended; every row of the archive, oldest first."""
        self.archiver._began_at = 0.0
        while any(self.left().values()):
            self.archiver._began_at = self.archiver._learned_at = 0.0
            self.archiver.run_once()
        return rows()

    def left(self) -> dict[Partition, int]:
        """Lengths of the finished streams."""
        partitions = self.store.topics.used_partitions()
        return {
            p: int(self.store.client.redis.xlen(keys.finished_key(self.store.client.prefix, p)))
            for p in partitions
        }

    def relay(self) -> int:
        """What the relay has sent in one round."""
        self._next_millisecond()
        before = self.relayer.sent
        self.relayer.run_once()
        return self.relayer.sent - before

    def _next_millisecond(self) -> None:
        """What was enqueued, or moved to now, in this very millisecond is due in the next."""
        next_ms = self.store.clock_ms() + 1
        while self.store.clock_ms() < next_ms:
            pass

    def reconcile(self) -> int:
        """What the reconciler has restored of all rows, as if reconcile_after were over."""
        OutboxMessage.objects.filter(status="sent").update(relay_at_ms=0)
        before = self.reconciler.restored
        self.reconciler.run_once()
        while self.reconciler._after:
            self.reconciler.run_once()
        return self.reconciler.restored - before


def rows() -> list[ArchivedMessage]:
    """The archive, oldest first."""
    return list(ArchivedMessage.objects.order_by("id"))


def only_row() -> ArchivedMessage:
    """The only row of the archive."""
    (row,) = rows()
    return row


def outbox() -> list[tuple[str, str]]:
    """Status and key of the rows of the outbox, oldest first."""
    return list(OutboxMessage.objects.order_by("id").values_list("status", "key"))


def statuses() -> list[str]:
    """Of the rows of the outbox, oldest first."""
    return [status for status, _ in outbox()]


def lose_redis(store: RedisStore) -> None:
    """As FLUSHDB, but only of this test's prefix."""
    for key in prefix_keys(store):
        store.client.redis.delete(key)
    store.partitions.forget()


def stored(when: datetime) -> datetime:
    """As the database has it: naive without USE_TZ."""
    return when if settings.USE_TZ or when.tzinfo is None else make_naive(when)


def prefix_keys(store: RedisStore) -> list[bytes]:
    return list(store.client.redis.scan_iter(f"{store.client.prefix}:*", count=1000))


def messages_in(store: RedisStore, partition: Partition = DEFAULT) -> set[bytes]:
    """Ids of all that is live in Redis."""
    return set(store.client.redis.hgetall(keys.partition_keys(store.client.prefix, partition)[4]))


def put_entry(store: RedisStore, partition: Partition = ORDERS, **fields: Any) -> bytes:
    """An entry of the finished stream as a script writes it; returns its message's id."""
    entry = {
        "id": new_id(),
        "state": "acked",
        "at": int(store.clock_ms()),
        "record": b"",
        "attempts": b"",
    }
    entry |= {"detail": b"{}"} | fields
    store.partitions.counts(partition.topic)
    store.client.redis.xadd(keys.finished_key(store.client.prefix, partition), entry)
    return bytes(entry["id"])


def stored_record(
    stamp_us: int, body: bytes, flags: int = 0x11, task: str = "tests.app.tasks.record"
) -> bytes:
    """A record with its stamp, as it lies in Redis."""
    return STAMP.pack(stamp_us, bytes(6)) + HEADER.pack(flags, 60_000, task_code(task)) + body


def make_due(handle: Handle) -> None:
    """As if its delay were over."""
    get_store().reschedule_in(Partition(handle.topic, 0), handle.identity, PAST)


def end_lease(store: RedisStore, lease: Lease) -> None:
    """As if its worker had vanished."""
    store.client.command(
        "ZADD", keys.leased_key(store.client.prefix, lease.partition), "XX", 1, lease.id
    )
    store.reclaim(lease.partition)


def together(*functions: Callable[[], Any]) -> Sequence[Any]:
    """Run all at the same time, each in a thread with database connections of its own; what they
    return or raise."""
    answers: list[Any] = [None] * len(functions)
    start = threading.Barrier(len(functions))

    def run(number: int) -> None:
        try:
            start.wait(10)
            answers[number] = functions[number]()
        except BaseException as error:
            answers[number] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers


@contextmanager
def meanwhile(function: Callable[[], Any]) -> Iterator[Callable[[], None]]:
    """Gives what begins it in another thread and waits a moment, for it may have to wait for us;
    ends with it."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            answers.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)

    def begin() -> None:
        thread.start()
        thread.join(0.3)

    yield begin
    thread.join(60)
    if isinstance(answers[0], BaseException):
        raise answers[0]


def apart(function: Callable[[], Any]) -> Any:
    """Run in another thread: another connection to the database."""
    return together(function)[0]
