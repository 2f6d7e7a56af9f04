"""What the benchmark `bodies` does with messages of one size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django_delayq.core.message import stamp_us_of
from django_delayq.store import get_store
from django_delayq.store.finished import FinishedStream
from django_delayq.store.keys import Partition, leased_key
from django_delayq.store.lease import Lease
from django_delayq.store.queries import Life
from django_delayq.worker.outcome import Outcome, Result
from django_delayq.worker.settler import settle_parts
from tests.benchmarks import tasks


class Store:
    """A partition with messages of one size, and what can be done with them."""

    def __init__(self, size: int, count: int) -> None:
        self.store, self.partition = get_store(), Partition("bench", 0)
        self.stream = FinishedStream(self.store, self.partition, "bench")
        self.blob, self.count = "x" * (size - 100), count
        self.held: list[Lease] = []
        self.handles: list[Any] = []

    def enqueue_one(self) -> None:
        tasks.noop.enqueue(0, self.blob)

    def enqueue(self, delay: float = 0) -> None:
        self.handles = tasks.noop.using(delay=delay).enqueue_many([(0, self.blob)] * self.count)

    def claim(self) -> None:
        self.held.clear()
        while leases := self.store.claim(self.partition, 500).leases:
            self.held += leases

    def settle(self, result: Result) -> None:
        outcomes = [Outcome(lease, None, result, 0.0) for lease in self.held]
        for part in settle_parts(outcomes):
            some = [outcome.lease for outcome in part]
            if result is Result.ACKED:
                self.store.ack(self.partition, [(lease, b"{}") for lease in some])
            elif result is Result.RELEASED:
                self.store.release(self.partition, some)
            else:
                delay_ms = None if result is Result.DEAD else 0
                self.store.nack(self.partition, [(one, delay_ms, True, b"{}") for one in some])

    def archive(self) -> None:
        while entries := self.stream.read():
            self.stream.remove(entries)

    def end_leases(self) -> None:
        self.enqueue()
        self.claim()
        key = leased_key(self.store.client.prefix, self.partition)
        redis: Any = self.store.client.redis
        redis.zadd(key, {lease.id: 1 for lease in self.held})

    def reclaim(self) -> None:
        while self.store.reclaim(self.partition).more:
            pass

    def purge(self) -> None:
        while self.store.purge(self.partition):
            pass

    @property
    def ids(self) -> list[bytes]:
        return [handle.identity for handle in self.handles]

    def find(self) -> Sequence[Any]:
        return self.store.queries.find(self.partition, self.ids)

    def shift(self) -> None:
        found = self.find()
        moves = [
            (Life(one.id, stamp_us_of(one.record) or 0), one.due_at_ms, one.due_at_ms + 1)
            for one in found
        ]
        assert {*self.store.shift(self.partition, moves)} == {"OK"}

    def cancel(self) -> None:
        assert {*self.store.cancel_in(self.partition, self.ids)} == {"OK"}


def steps(size: int, count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is done, and its name; without one it is only to get there."""
    store = Store(size, count)
    yield "enqueue", store.enqueue_one
    yield "enqueue_many", store.enqueue
    yield "claim", store.claim
    yield "release", lambda: store.settle(Result.RELEASED)
    yield "", store.claim
    yield "retry", lambda: store.settle(Result.RETRIED)
    yield "", store.claim
    yield "dead", lambda: store.settle(Result.DEAD)
    yield "finished stream", store.archive
    yield "", store.enqueue
    yield "", store.claim
    yield "ack", lambda: store.settle(Result.ACKED)
    yield "", store.archive
    yield "", store.end_leases
    yield "reclaim", store.reclaim
    yield "", store.purge
    yield "", lambda: store.enqueue(3600)
    yield "find and shift", store.shift
    yield "cancel", store.cancel
    yield "", lambda: store.enqueue(3600)
    yield "purge", store.purge
