"""Dramatiq."""

from __future__ import annotations

import os
from collections.abc import Iterable

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.benchmarks.order_peers import closing

dramatiq.set_broker(RedisBroker(url=os.environ["DELAYQ_BENCH_REDIS"]))
close = dramatiq.actor(actor_name="close")(closing.close)


def enqueue(ids: Iterable[int]) -> None:
    """One message for each."""
    for order_id in ids:
        close.send(order_id)
