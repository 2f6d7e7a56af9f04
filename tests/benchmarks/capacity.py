"""The costs of `delayq plan`, measured by CPU time, and its predictions beside what ran with 1, 2 and
4 processes and partitions. `--costs FILE` keeps the costs for `delayq plan --costs FILE`."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tests import databases
from tests.benchmarks import archive_rate, common, on_database
from tests.benchmarks.burst import drain
from tests.benchmarks.common import median
from tests.benchmarks.variants import Variant, burst_of

LONE, MANY, DRAINED, ROWS = 5_000, 100_000, 40_000, 50_000
RUNS = 5
#: Bytes of the arguments of all messages here.
ARGUMENTS = 100
COUNTS = (1, 2, 4)
#: Seconds until a drain begins, beside those for its messages.
HEAD = 2.0
VARIANTS = [
    *(Variant(f"processes={count}", worker=("--processes", str(count))) for count in COUNTS),
    *(
        Variant(f"partitions={count}", {"DELAYQ_BENCH_PARTITIONS": str(count)})
        for count in COUNTS[1:]
    ),
]
#: Where the part on each kind of database leaves what it has found.
FOUND = "DELAYQ_BENCH_COSTS"


def main(arguments: list[str]) -> None:
    """Redis and workers first, then the archive on each kind of database."""
    if on_database.ONE in arguments:
        own = on_database.arguments_of("capacity", databases.KINDS, arguments)
        measure_archive(common.options(own or [], RUNS), Path(os.environ[FOUND]))
        return
    file = Path(arguments.pop(arguments.index("--costs") + 1)) if "--costs" in arguments else None
    rest = [word for word in arguments if word != "--costs"]
    options = common.options(rest, RUNS)
    found = file or Path(f".bench/costs.{os.getpid()}.json")
    found.parent.mkdir(parents=True, exist_ok=True)
    predict(options, measure(options, found))
    os.environ[FOUND] = str(found)
    on_database.arguments_of("capacity", databases.KINDS, rest)
    if file is None:
        found.unlink()


def measure(options: common.Options, found: Path) -> Any:
    """The costs of Redis and of one worker process, in CPU time: other work on the machine changes
    these less than rates."""
    with common.bench_server() as server:
        from django_delayq.stats.capacity import Costs

        enqueued = _enqueue(server.client(), options)
        many_us = enqueued["enqueue_many_us"]
        costs = dataclasses.replace(Costs(), **enqueued, **_run(server.client(), options, many_us))
    found.write_bytes(msgspec.json.format(msgspec.json.encode(costs)))
    for name in ("enqueue_us", "enqueue_many_us", "run_us", "worker_us", "message_bytes"):
        unit = "bytes" if name == "message_bytes" else "us"
        common.report(
            "capacity", getattr(costs, name), unit, case=name, ceiling=getattr(Costs(), name),
            ceiling_is="what `delayq plan` takes without --costs", runs=options.runs,
        )  # fmt: skip
    return costs


def _enqueue(client: Any, options: common.Options) -> dict[str, Any]:
    from tests.benchmarks.tasks import noop

    later, numbers = noop.using(delay=3600), itertools.count(10_000_000)
    lone, many = options.scaled(LONE, 200), options.scaled(MANY, 2_000)

    def one_by_one() -> None:
        for _ in range(lone):
            later.enqueue(next(numbers), "x" * 88)

    def together() -> None:
        later.enqueue_many((next(numbers), "x" * 88) for _ in range(many))

    later.enqueue(next(numbers), "x" * 88)  # the scripts are loaded
    memory = client.info("memory")["used_memory"]
    many_us = [_redis_us(client, many, together) for _ in range(options.runs)]
    grown = client.info("memory")["used_memory"] - memory
    lone_us = [_redis_us(client, lone, one_by_one) for _ in range(options.runs)]
    client.flushdb()
    return {
        "enqueue_us": median(lone_us),
        "enqueue_many_us": median(many_us),
        "message_bytes": round(grown / many / options.runs) - ARGUMENTS,
    }


def _run(client: Any, options: common.Options, many_us: float) -> dict[str, float]:
    count, run_us, worker_us = options.scaled(DRAINED, 1_000), [], []
    with common.BenchWorker() as worker:
        worker.warm_up()
        for number in range(options.runs):
            cpu = worker.cpu_seconds()
            work = partial(drain, count, number * count, HEAD + count / 10_000)
            run_us.append(_redis_us(client, count, work) - many_us)
            worker_us.append((worker.cpu_seconds() - cpu) / count * 1e6)
    return {"run_us": median(run_us), "worker_us": median(worker_us)}


def _redis_us(client: Any, messages: int, work: Callable[[], object]) -> float:
    """CPU of Redis for each message."""
    before = client.info("cpu")
    work()
    after = client.info("cpu")
    names = ("used_cpu_user", "used_cpu_sys")
    return float(sum(after[name] - before[name] for name in names)) / messages * 1e6


def predict(options: common.Options, costs: Any) -> None:
    """Drains by turns, and what the plan says of them."""
    from django_delayq.stats.capacity import drain_rate

    cores = len(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {variant.case: [] for variant in VARIANTS}
    for _ in range(options.runs):
        for variant in VARIANTS:
            rates[variant.case].append(burst_of(variant, options)["figure"])
    for variant in VARIANTS:
        name, _, count = variant.case.partition("=")
        processes = int(count) if name == "processes" else 1
        ran = median(rates[variant.case])
        common.report(
            "capacity", ran, "messages/s", case=variant.case,
            ceiling=drain_rate(costs, processes, cores), ceiling_is="predicted",
            cores=cores, runs=options.runs,
        )  # fmt: skip


def measure_archive(options: common.Options, found: Path) -> None:
    """Rows a second of one archiver, and the bytes of a row with its indexes."""
    count, rates, sizes = options.scaled(ROWS, 1_000), [], []
    with common.bench_server():
        from django.core.management import call_command
        from django.db import connection

        call_command("migrate", verbosity=0)
        for number in range(options.runs):
            with common.BenchWorker() as worker:
                worker.warm_up(100)
                drain(count, number * count, head=HEAD + count / 10_000)
            empty = _table_bytes(connection)
            full: list[int] = []
            rates.append(archive_rate.ours(partial(_note_bytes, connection, full)))
            sizes.append(full[0] - empty)
        row_bytes = round(median(sizes) / count) - ARGUMENTS
        kind, vendor = databases.kind_of(connection_settings()), connection.vendor
    costs = msgspec.json.decode(found.read_bytes())
    costs["archived_rows"][vendor] = median(rates)
    costs["row_bytes"][vendor] = row_bytes
    found.write_bytes(msgspec.json.format(msgspec.json.encode(costs)))
    common.report(
        "capacity", median(rates), "rows/s", case=f"archiver on {kind}", runs=options.runs
    )
    common.report("capacity", row_bytes, "bytes", case=f"row on {kind}", runs=options.runs)


def connection_settings() -> Any:
    """The database of this process."""
    return msgspec.json.decode(os.environ[databases.VARIABLE])


def _note_bytes(connection: Any, sizes: list[int]) -> None:
    sizes.append(_table_bytes(connection))


def _table_bytes(connection: Any) -> int:
    """Of the archive, with its indexes."""
    from django_delayq.models import ArchivedMessage

    table = ArchivedMessage._meta.db_table
    queries = {
        "postgresql": f"SELECT pg_total_relation_size('{table}')",
        "mysql": "SELECT data_length + index_length FROM information_schema.tables "
        f"WHERE table_schema = DATABASE() AND table_name = '{table}'",
        "sqlite": "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    }
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute(f"ANALYZE TABLE {table}")
            cursor.fetchall()
            time.sleep(0.1)
        cursor.execute(queries[connection.vendor])
        return int(cursor.fetchone()[0])


if __name__ == "__main__":
    main(sys.argv[1:])
