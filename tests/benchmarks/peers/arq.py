"""arq: polls a sorted set."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from tests.benchmarks.journal import note

ADDRESS = RedisSettings.from_dsn(os.environ["DELAYQ_BENCH_REDIS"])
_pool: list[ArqRedis] = []


async def noop(context: dict[str, Any], index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


class WorkerSettings:
    """What the worker reads."""

    functions = [noop]
    redis_settings = ADDRESS
    max_jobs = 100
    poll_delay = 0.1
    keep_result = 0


async def opened() -> None:
    """Connect."""
    _pool.append(await create_pool(ADDRESS))


async def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    await _pool[0].enqueue_job(
        "noop", index, padding, _defer_until=datetime.fromtimestamp(due, tz=timezone.utc)
    )
