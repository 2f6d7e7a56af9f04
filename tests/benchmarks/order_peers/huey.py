"""huey."""

from __future__ import annotations

import os
from collections.abc import Iterable

from huey import RedisHuey

from tests.benchmarks.order_peers import closing

queue = RedisHuey("bench", url=os.environ["DELAYQ_BENCH_REDIS"], results=False)
close = queue.task()(closing.close)


def enqueue(ids: Iterable[int]) -> None:
    """One message for each."""
    for order_id in ids:
        close(order_id)
