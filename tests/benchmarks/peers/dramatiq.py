"""Dramatiq: delays that its workers hold in memory."""

from __future__ import annotations

import math
import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from tests.benchmarks.journal import note

broker = RedisBroker(url=os.environ["DELAYQ_BENCH_REDIS"])
dramatiq.set_broker(broker)


@dramatiq.actor(actor_name="noop")
def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


def enqueue(index: int, due: float, padding: str) -> None:
    """One message. Upwards, for dramatiq adds whole milliseconds to a clock that it rounds down."""
    noop.send_with_options(
        args=(index, padding), delay=max(0, math.ceil((due - time.time()) * 1000) + 1)
    )
