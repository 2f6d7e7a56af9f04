"""Moves what time would move: due times and leases, on the server and in the worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from django_delayq import topic_stats
from django_delayq.client.handle import Handle
from django_delayq.store import keys
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore

LONG_AGO = datetime(2001, 9, 9, tzinfo=timezone.utc)


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What the condition gives once it is true. For what other threads do; polls every
    millisecond."""
    until = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < until, f"not within {seconds} s"
        time.sleep(0.001)
    return answer


def make_due(store: RedisStore, handle: Handle) -> None:
    """As if its delay were over."""
    store.reschedule_in(Partition(handle.topic, 0), handle.identity, "1000000000000")


def end_lease(store: RedisStore, lease: Lease) -> None:
    """As if its ttr were over without a word from the worker."""
    store.client.command(
        "ZADD", keys.leased_key(store.client.prefix, lease.partition), "XX", 1, lease.id
    )


def steal(store: RedisStore, lease: Lease) -> Lease:
    """As if the worker had been too slow: another one runs the message now."""
    end_lease(store, lease)
    store.reclaim(lease.partition)
    store.reschedule_in(lease.partition, lease.id, "1000000000000")
    (other,) = store.claim(lease.partition, 1).leases
    return other


def crash(store: RedisStore, times: int, *handles: Handle) -> None:
    """As if workers that ran all that is due of one topic had been killed so often; it is due
    again."""
    for _ in range(times):
        leases = store.claim(Partition(handles[0].topic, 0), 500).leases
        assert {lease.id.hex() for lease in leases} == {handle.id for handle in handles}
        for lease in leases:
            end_lease(store, lease)
        store.reclaim(leases[0].partition)
        for handle in handles:
            make_due(store, handle)


def unformattable() -> SyntaxError:
    """An error whose traceback cannot be shown: its line is bytes. Template compilers have made
    such."""
    return SyntaxError("bad expression", ("invoice.html", 3, 7, b"{{ total | }}"))


def pass_time(lease: Lease, seconds: float) -> None:
    """As if the lease had been taken so many seconds earlier, by the worker's own clock."""
    lease.claimed_at -= seconds
    lease.renewed_at -= seconds
    if lease.started_at:
        lease.started_at -= seconds


def counters(topic: str) -> dict[str, int]:
    """What has happened to the topic's messages."""
    return {name: count for name, count in topic_stats(topic).counters.items() if count}


def ended(store: RedisStore, topic: str) -> list[dict[str, bytes]]:
    """The entries of the finished stream."""
    stream = keys.finished_key(store.client.prefix, Partition(topic, 0))
    return [
        {name.decode(): value for name, value in fields.items()}
        for _, fields in store.client.redis.xrange(stream)
    ]
