"""What a load needs: processes, partitions, memory, connections, disks, executors; and what breaks
first when the load grows. Arithmetic only: it asks no server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

DAY = 86_400
#: A part that is busier than this share of its time makes messages late: queues grow without end
#: as it nears 1.
BUSY = 0.6
#: Cores of a Spark executor.
EXECUTOR_CORES = 4
#: So many messages in one sorted set were measured; claims are as quick as beside ten thousand.
PARTITION_MESSAGES = 10_000_000
#: Partitions for each primary of a cluster: their keys are spread by a hash, and few are spread
#: unevenly.
PARTITIONS_A_PRIMARY = 4
#: Threads of one process beyond which its interpreter lock is the limit, whatever they wait for.
MOST_THREADS = 64


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one message, or one row, costs on one core of the machine that was measured
    (`python -m tests.benchmarks.capacity`)."""

    enqueue_us: float = 17.0
    """CPU of Redis for a lone enqueue."""
    enqueue_many_us: float = 3.4
    """CPU of Redis for each message of enqueue_many()."""
    run_us: float = 7.5
    """CPU of Redis from the claim to the ack."""
    worker_us: float = 13.0
    """CPU of a worker process, without the task."""
    message_bytes: int = 230
    """Memory of Redis for a waiting message, without its arguments."""
    archived_rows: Mapping[str, float] = field(
        default_factory=lambda: {"postgresql": 54_000, "mysql": 22_600, "sqlite": 53_800}
    )
    """Rows that one archiver inserts in a second, by the vendor of the database."""
    row_bytes: Mapping[str, int] = field(
        default_factory=lambda: {"postgresql": 413, "mysql": 446, "sqlite": 510}
    )
    """Disk of a row of the archive with its indexes, without the arguments."""
    lake_row_bytes: int = 60
    """Disk of a row of the lake, without the arguments."""
    exported_rows: float = 64_000
    """Rows that one core of Spark exports in a second, with the check of each file."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The messages of a project, and how it wants to run them."""

    rate: float
    """Messages a second, over a day."""
    peak: float = 3.0
    """The busiest minute, as a multiple of the rate."""
    delay_s: float = 1_800.0
    """How long a message waits until it is due."""
    size: int = 100
    """Bytes of the arguments as JSON."""
    task_ms: float = 5.0
    """How long a call of the function takes."""
    task_cpu_ms: float = 0.5
    """How long it computes in its process, of that."""
    batch: int = 1
    """Messages of one call."""
    many: bool = False
    """Messages are sent by enqueue_many() or in transactions with many, and not one by one."""
    database: str = "postgresql"
    """The vendor of the archive's database: postgresql, mysql (also MariaDB) or sqlite."""
    archived: float = 1.0
    """The share of the messages that get a row: 0 to 1. With ARCHIVE="dead", that of dead
    letters."""
    keep_days: float = 90.0
    """For how long the archive keeps its rows."""
    lake_days: float = 0.0
    """For how long a lake keeps them; 0: there is none."""
    window_s: float = 3_600.0
    """In what time the export of a day is to be done."""
    redis_gb: float = 16.0
    """Memory for data on one Redis server."""
    disk_gb: float = 1_000.0
    """Disk of the database."""
    connections: int = 500
    """The most connections of the database."""


class Need(NamedTuple):
    """One line of a plan."""

    what: str
    amount: float
    unit: str
    why: str


class Limit(NamedTuple):
    """Something that breaks when the load grows."""

    what: str
    rate: float
    """Messages a second, over a day, at which it breaks."""
    then: str
    """What to do before that."""


@dataclass(frozen=True, kw_only=True)
class CapacityPlan:
    """What a load needs."""

    needs: list[Need]
    limits: list[Limit]
    """The one that breaks first is in front."""
    processes: int
    concurrency: int
    primaries: int
    partitions: int
    archivers: int

    def need(self, what: str) -> float:
        """The amount of one line. Raises KeyError for a line that is not there."""
        return {need.what: need.amount for need in self.needs}[what]


def drain_rate(costs: Costs, processes: int, cores: int) -> float:
    """Messages a second that so many worker processes drain at most when they share the cores with
    one Redis server, and when tasks do nothing."""
    return 1e6 * min(
        processes / costs.worker_us, 1 / costs.run_us, cores / (costs.worker_us + costs.run_us)
    )


def plan_capacity(load: Load, costs: Costs) -> CapacityPlan:
    """What the load needs in its busiest minute, with reserves (BUSY)."""
    busiest = load.rate * load.peak
    redis_us = costs.run_us + (costs.enqueue_many_us if load.many else costs.enqueue_us)
    waiting = load.rate * load.delay_s
    memory_gb = waiting * (costs.message_bytes + load.size) / 1e9
    primaries = max(
        1, math.ceil(busiest * redis_us / 1e6 / BUSY), math.ceil(memory_gb / load.redis_gb)
    )
    partitions = max(
        1 if primaries == 1 else primaries * PARTITIONS_A_PRIMARY,
        math.ceil(waiting / PARTITION_MESSAGES),
    )
    calls = busiest / load.batch
    cpu_s = busiest * costs.worker_us / 1e6 + calls * load.task_cpu_ms / 1e3
    threads = calls * load.task_ms / 1e3 / BUSY
    processes = max(1, math.ceil(cpu_s / BUSY), math.ceil(threads / MOST_THREADS))
    concurrency = max(8, math.ceil(threads / processes))
    rows = load.rate * load.archived
    archivers = math.ceil(rows / BUSY / costs.archived_rows[load.database])
    archive_gb = rows * DAY * load.keep_days * (costs.row_bytes[load.database] + load.size) / 1e9
    # Each thread of tasks has a connection, the coroutines of a process share one more.
    connections = processes * (concurrency + 1) + archivers
    needs = [
        Need("Redis CPU", busiest * redis_us / 1e6, "cores", f"{redis_us:.1f} us a message"),
        Need("Redis primaries", primaries, "", f"{BUSY:.0%} busy, {load.redis_gb:g} GB each"),
        Need("partitions", partitions, "for the topic", "spread over the primaries"),
        Need("waiting messages", waiting, "", f"{load.delay_s:g} s of delay"),
        Need("Redis memory", memory_gb, "GB", "and as much again for each replica"),
        Need("worker processes", processes, "", f"{cpu_s:.2g} cores of CPU, {BUSY:.0%} busy"),
        Need("threads", processes * concurrency, "", f"--concurrency {concurrency}"),
        Need("archivers", archivers, "", f"{rows:,.0f} rows/s"),
        Need("database connections", connections, "", "of workers and archivers"),
        Need("archive", archive_gb, "GB", f"{load.keep_days:g} days with indexes"),
    ]
    if load.lake_days:
        size = costs.lake_row_bytes + load.size / 2  # JSON becomes half as long in Parquet
        cores = rows * DAY / load.window_s / costs.exported_rows
        needs += [
            Need(
                "lake", rows * DAY * load.lake_days * size / 1e9, "GB", f"{load.lake_days:g} days"
            ),
            Need(
                "Spark executors",
                math.ceil(cores / EXECUTOR_CORES),
                f"of {EXECUTOR_CORES} cores",
                f"the export of a day in {load.window_s:g} s",
            ),
        ]
    return CapacityPlan(
        needs=needs,
        limits=_limits(load, costs, redis_us, memory_gb, archive_gb, connections),
        processes=processes,
        concurrency=concurrency,
        primaries=primaries,
        partitions=partitions,
        archivers=archivers,
    )


def _limits(
    load: Load,
    costs: Costs,
    redis_us: float,
    memory_gb: float,
    archive_gb: float,
    connections: int,
) -> list[Limit]:
    """What breaks, and at which rate, if there is one of each server and the load only grows."""

    def at(needed: float, there: float) -> float:
        return load.rate * there / needed if needed else math.inf

    found = [
        Limit(
            "CPU of one Redis server",
            BUSY * 1e6 / redis_us / load.peak,
            "enqueue_many(), then a Redis Cluster, and partitions for the topic",
        ),
        Limit(
            "memory of one Redis server",
            at(memory_gb, load.redis_gb),
            "durable messages behind HORIZON, or a Redis Cluster",
        ),
        Limit(
            "inserts into the archive",
            at(load.rate * load.archived, BUSY * costs.archived_rows[load.database]),
            'more archivers and cores for the database, ARCHIVE="dead", or a second project with '
            "a database and a PREFIX of its own",
        ),
        Limit(
            "disk of the archive",
            at(archive_gb, load.disk_gb),
            "a shorter ARCHIVE_RETENTION, and a lake for the rest",
        ),
        Limit(
            "connections of the database",
            at(connections, load.connections),
            "batch tasks, a pool (psycopg_pool, PgBouncer), or fewer threads",
        ),
    ]
    return sorted(found, key=lambda limit: limit.rate)
