"""rq."""

from __future__ import annotations

import os
from collections.abc import Iterable

from redis import Redis
from rq import Queue

from tests.benchmarks.order_peers.closing import close

queue = Queue(connection=Redis.from_url(os.environ["DELAYQ_BENCH_REDIS"]))


def enqueue(ids: Iterable[int]) -> None:
    """One message for each."""
    for order_id in ids:
        queue.enqueue(close, order_id, result_ttl=0)
