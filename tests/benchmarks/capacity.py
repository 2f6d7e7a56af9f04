"""The costs of `delayq plan`, measured by CPU time, and its predictions beside what ran with 1, 2 and
4 processes and partitions. `--costs FILE` keeps the costs for `delayq plan --costs FILE`. `--write`
makes them the costs of this package, and writes the tables of docs/how-to/capacity.md."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
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
PAGE = Path("docs/how-to/capacity.md")
MODEL = Path("django_delayq/stats/capacity.py")
HEAD_OF_STEPS = (
    "messages a day", "Redis primaries / partitions", "Redis memory", "processes × threads", "archivers",
    "archive", "breaks first",
)  # fmt: skip
_BATCHES = {"many": True, "batch": 500, "task_ms": 20.0, "task_cpu_ms": 5.0}
STEPS: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("1 million, kept 90 days", 1e6, {}),
    ("100 million, kept 14 days", 1e8, {"keep_days": 14.0}),
    ("1 billion in batches, kept 3 days", 1e9, {"keep_days": 3.0, **_BATCHES}),
    ("10 billion in batches, dead letters kept", 1e10, {"archived": 0.001, **_BATCHES}),
    ("10 billion in batches, all kept 3 days", 1e10, {"keep_days": 3.0, **_BATCHES}),
)
#: Where the part on each kind of database leaves what it has found.
FOUND = "DELAYQ_BENCH_COSTS"


def main(arguments: list[str]) -> None:
    """Redis and workers first, then the archive on each kind of database."""
    if on_database.ONE in arguments:
        own = on_database.arguments_of("capacity", databases.KINDS, arguments)
        measure_archive(common.options(own or [], RUNS), Path(os.environ[FOUND]))
        return
    file = Path(arguments.pop(arguments.index("--costs") + 1)) if "--costs" in arguments else None
    rest = [word for word in arguments if word not in ("--costs", "--write")]
    options = common.options(rest, RUNS)
    found = file or Path(f".bench/costs.{os.getpid()}.json")
    found.parent.mkdir(parents=True, exist_ok=True)
    predictions = predict(options, measure(options, found))
    os.environ[FOUND] = str(found)
    on_database.arguments_of("capacity", databases.KINDS, rest)
    if "--write" in arguments:
        write(msgspec.json.decode(found.read_bytes()), predictions)
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


def predict(options: common.Options, costs: Any) -> list[tuple[str, float, float]]:
    """Drains by turns, and what the plan says of them: the case, the rate, and the predicted one."""
    from django_delayq.stats.capacity import drain_rate

    cores = len(os.sched_getaffinity(0))
    rates: dict[str, list[float]] = {variant.case: [] for variant in VARIANTS}
    for _ in range(options.runs):
        for variant in VARIANTS:
            rates[variant.case].append(burst_of(variant, options)["figure"])
    found = []
    for variant in VARIANTS:
        name, _, count = variant.case.partition("=")
        processes = int(count) if name == "processes" else 1
        ran, predicted = median(rates[variant.case]), drain_rate(costs, processes, cores)
        found.append((variant.case, ran, predicted))
        common.report(
            "capacity", ran, "messages/s", case=variant.case,
            ceiling=predicted, ceiling_is="predicted",
            off_by=abs(ran / predicted - 1), cores=cores, runs=options.runs,
        )  # fmt: skip
    return found


def write(costs: dict[str, Any], predictions: list[tuple[str, float, float]]) -> None:
    """Into the source of Costs, and into the page."""
    code = MODEL.read_text()
    for name, value in costs.items():
        if not isinstance(value, dict):
            pattern = rf"(    {name}: \w+ = )[\d._]+"
            code = re.sub(pattern, lambda found, v=value: f"{found[1]}{_number(v)}", code)  # type: ignore[misc]
            continue
        entries = ", ".join(f'"{vendor}": {_number(v)}' for vendor, v in value.items())
        pattern = rf"(    {name}: [^\n]*\n[^{{]*){{[^}}]*}}"
        code = re.sub(pattern, lambda found, e=entries: f"{found[1]}{{{e}}}", code)  # type: ignore[misc]
    MODEL.write_text(code)
    rows = [
        (case.replace("=", ": "), f"{ran:,.0f}", f"{predicted:,.0f}", f"{ran / predicted:.2f}")
        for case, ran, predicted in predictions
    ]
    replace_table("predictions", table(("", "messages/s", "predicted", "ratio"), rows))
    command = [
        sys.executable,
        "-c",
        "from tests.benchmarks import capacity; capacity.write_steps()",
    ]
    subprocess.run(command, check=True)  # the costs are read anew


def _number(value: float) -> str:
    """Three digits, as one writes it in code."""
    if isinstance(value, int):
        return f"{value:_}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:_.0f}" if rounded >= 100 else f"{rounded}"


def write_steps() -> None:
    """The table of ever larger loads, by the costs of this package."""
    replace_table("steps", steps())


def steps() -> str:
    """The table of ever larger loads."""
    from django_delayq.stats.capacity import DAY, Costs, Load, plan_capacity

    rows = []
    for words, per_day, more in STEPS:
        load = Load(rate=per_day / DAY, **more)
        found = plan_capacity(load, Costs())
        first = found.limits[0]
        rows.append((
            words,
            f"{found.primaries} / {found.partitions}",
            f"{found.need('Redis memory'):,.2g} GB"
            if found.need("Redis memory") < 10
            else f"{found.need('Redis memory'):,.0f} GB",
            f"{found.processes} × {found.concurrency}",
            f"{found.archivers}",
            f"{found.need('archive'):,.0f} GB",
            f"{first.what}, {first.rate / load.rate:.2g} ×",
        ))  # fmt: skip
    return table(HEAD_OF_STEPS, rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replace_table(name: str, text: str) -> None:
    """The table between its two marks."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    page = PAGE.read_text()
    before, rest = page.split(begin)
    PAGE.write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}")


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
        # What was deleted before has left free pages.
        "sqlite": "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()",
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
