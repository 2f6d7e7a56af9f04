"""taskiq: a scheduler process that reads its schedules again every second."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from tests.benchmarks.journal import note

URL = os.environ["DELAYQ_BENCH_REDIS"]
broker = RedisStreamBroker(URL)
source = ListRedisScheduleSource(URL)
scheduler = TaskiqScheduler(broker, [source])


@broker.task(task_name="noop")
async def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


async def opened() -> None:
    """Connect."""
    await broker.startup()
    await source.startup()


async def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    await noop.schedule_by_time(
        source, datetime.fromtimestamp(due, tz=timezone.utc), index, padding
    )
