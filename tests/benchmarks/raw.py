"""The ceilings: what raw Redis and a bare loop reach with the same client in the same run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.common import median
from tests.servers import Server

RAW_ENQUEUE = """
for i = 1, #ARGV, 3 do
  redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1])
  redis.call('HSET', KEYS[2], ARGV[i + 1], ARGV[i + 2])
end
"""

RAW_BODY = b"x" * 123


class RawQueue:
    """ZADD and HSET in one EVALSHA per batch: the least that an enqueue can cost."""

    def __init__(self, server: Server) -> None:
        self.client = server.client()
        self._sha = self.client.script_load(RAW_ENQUEUE)

    def enqueue(self, batch: int, count: int, body: bytes = RAW_BODY) -> float:
        """Messages per second."""
        identities = [os.urandom(16) for _ in range(count)]
        begun = time.perf_counter()
        for at in range(0, count, batch):
            arguments: list[Any] = []
            for identity in identities[at : at + batch]:
                arguments += (1, identity, body)
            self.client.evalsha(self._sha, 2, "raw:zset", "raw:hash", *arguments)
        return count / (time.perf_counter() - begun)

    def clear(self) -> None:
        """Forget what was enqueued."""
        self.client.delete("raw:zset", "raw:hash")


def raw_drain(count: int) -> float:
    """Messages per second of our own claim and ack scripts in batches of 500 in one thread, nothing
    called."""
    from django_delayq.core.conf import get_settings
    from django_delayq.core.message import encode_header, encode_record, new_ids, task_code
    from django_delayq.core.times import When
    from django_delayq.store import get_store
    from django_delayq.store.keys import Partition
    from django_delayq.store.store import Outgoing

    store, partition, code = get_store(), Partition("raw", 0), task_code("raw")
    header = encode_header(code, 1, 30_000)
    record = encode_record(header, b"x" * 100, get_settings().compress_above)
    for at in range(0, count, 500):
        messages = [
            Outgoing(identity, "raise", When.after(0), When(), record)
            for identity in new_ids(min(500, count - at))
        ]
        store.enqueue(partition, {code: "raw"}, messages)
    done, begun = 0, time.perf_counter()
    while done < count:
        leases = store.claim(partition, 500).leases
        store.ack(partition, [(lease, b'{"worker":"raw","run_ms":0.001}') for lease in leases])
        done += len(leases)
    return count / (time.perf_counter() - begun)


def round_trip_ms(server: Server, count: int = 1000) -> float:
    """Median of a PING."""
    client, trips = server.client(), []
    for _ in range(count):
        before = time.perf_counter()
        client.ping()
        trips.append((time.perf_counter() - before) * 1000)
    client.close()
    return median(trips)


def loop_rate(count: int, workers: int, seconds: float, first: int) -> float:
    """Messages per second of asyncio alone: so many workers that create a task for each of the same
    coroutines."""
    from tests.benchmarks.tasks import io

    body: Any = io.definition.func

    async def work(indexes: Iterator[int]) -> None:
        for index in indexes:
            await asyncio.create_task(body(index, seconds))

    async def everything() -> float:
        indexes, begun = iter(range(first, first + count)), time.perf_counter()
        await asyncio.gather(*(work(indexes) for _ in range(workers)))
        return count / (time.perf_counter() - begun)

    return asyncio.run(everything())
