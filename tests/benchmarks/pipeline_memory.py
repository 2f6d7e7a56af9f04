"""The driver's memory: each job in a process of its own, over so many rows and over ten times as
many.

    python -m tests.benchmarks.pipeline_memory [--rows 2000000] [--times 1,10] [--only export]

It reads the highest resident memory from /proc: of the driver's Python, of its Java, and of the
largest Python of the executors. The rows of the larger size lie over ten times as many days. Every
message of the archive is in the lake, and as many others wait in Redis.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests import databases
from tests.benchmarks import common, seed
from tests.benchmarks.peers.catalogue import ROOT
from tests.servers import launcher

ROWS, TIMES = 2_000_000, 10
#: How much more the driver's Python may have with ten times the rows.
MOST_GROWTH_MB = 200.0
MASTER, MEMORY = "local[2]", "1g"
EVERY = 0.1
CHUNK = 10_000
#: Of the rows that wait.
DAYS = 14
PERSON = "order:77"


_ANY = [
    {"name": "more", "kind": "rest", "required": False},
    {"name": "others", "kind": "others", "required": False},
]
REMIND = {"name": "shop.remind", "topic": "reminders", "ttr_ms": 60_000, "parameters": _ANY}
REPLAYED = [
    {"name": name, "topic": topic, "ttr_ms": 60_000, "parameters": _ANY}
    for topic, name in seed.TASKS
]


class Step(NamedTuple):
    """A job with its options, in the order in which they run."""

    job: str
    options: dict[str, Any]
    lake: bool = True


STEPS = {
    "forecast": Step("forecast", {"drain_rate": 1_000.0}, lake=False),
    "export": Step("export", {"settle": 0, "compact": False}),
    "compaction": Step("export", {"settle": 0}),
    "stats": Step("stats", {}),
    "stats again": Step("stats", {"everything": True}),
    "stats, one process": Step("stats", {"everything": True, "spark": False}),
    "stats, archive": Step("stats", {"source": "archive"}, lake=False),
    "stats, archive, one process": Step("stats", {"source": "archive", "spark": False}, lake=False),
    "schedule": Step(
        "schedule",
        {"job": "load", "task": REMIND, "format": "parquet", "key": "key", "due": "due_at"},
        lake=False,
    ),
    "audit": Step("audit", {"pause": 1.0}),
    "replay, lake": Step(
        "replay", {"source": "lake", "job": "lake", "tasks": REPLAYED, "where": "id % 2 = 0"}
    ),
    "replay": Step("replay", {"job": "archive", "tasks": REPLAYED}, lake=False),
    "erase": Step("", {}),
    "retain": Step("export", {"settle": 0, "retain": 15 * 86_400.0}),
    "prune": Step("export", {"settle": 0, "prune": 7 * 86_400.0}),
}


def main(arguments: list[str]) -> None:
    """Both sizes, and how they differ."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.pipeline_memory", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=ROWS, help="of the smaller size")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies them")
    parser.add_argument("--only", action="append", choices=STEPS, help="this job; may be repeated")
    parser.add_argument("--runs", help=argparse.SUPPRESS)  # for the suite: one run says it
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--times", default=f"1,{TIMES}", help="the sizes, as multiples of them")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.step:
        print(json.dumps(_step(given.step, given.rows, int(given.times), given.folder)))
        return
    rows = max(2_000, int(given.rows * given.scale))
    names = given.only or list(STEPS)
    sizes = [_measured(rows, int(times), names) for times in given.times.split(",")]
    small, large = sizes[0], sizes[-1]
    if small is large:
        return
    for name in names:
        growth = large[name]["driver_mb"] - small[name]["driver_mb"]
        common.report(
            "pipeline_memory", growth, "MB more", case=name, bar_mb=MOST_GROWTH_MB, rows=rows,
            **{f"{part}_{size}": found[name][part]
               for part in ("driver_mb", "java_mb", "executor_mb", "seconds")
               for size, found in (("small", small), ("large", large))},
        )  # fmt: skip
        if growth > MOST_GROWTH_MB:
            print("  MISSED")


def _measured(rows: int, times: int, names: list[str]) -> dict[str, dict[str, float]]:
    """What each job took, on servers of their own."""
    disk = ROOT / ".bench"
    disk.mkdir(exist_ok=True)
    redis, database = launcher("redis7"), databases.launcher("postgresql")
    redis.start()
    found = {}
    with tempfile.TemporaryDirectory(dir=disk) as folder, database as server:
        environment = {
            **os.environ,
            databases.VARIABLE: json.dumps(server.entry),
            "DELAYQ_TEST_REDIS": redis.url,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
        }
        try:
            for name in ("fill", *names):
                command = [
                    sys.executable, "-m", "tests.benchmarks.pipeline_memory", "--step", name,
                    f"--rows={rows}", f"--times={times}", f"--folder={folder}",
                ]  # fmt: skip
                done = subprocess.run(
                    command, env=environment, stdout=subprocess.PIPE, text=True, check=True
                )
                found[name] = json.loads(done.stdout.splitlines()[-1])
                print(f"  {rows * times:,} rows, {name}: {found[name]}", flush=True)
        finally:
            redis.stop()
    return found


# In a process of each


def _step(name: str, rows: int, times: int, folder: Path) -> dict[str, Any]:
    """What a job took of memory and time, and some of what it says."""
    seed.set_up()
    if name == "fill":
        return {"seconds": _timed(lambda: _fill(rows, times, folder))[1]}
    with _peaks() as peaks:
        figures, seconds = _timed(lambda: _run(name, rows * times, folder))
    if name == "forecast":
        from django_delayq.store import get_store

        get_store().client.redis.flushall(asynchronous=True)
    return {
        **{f"{part}_mb": size / 1e6 for part, size in peaks.items()},
        "seconds": seconds,
        **figures,
    }


def _run(name: str, rows: int, folder: Path) -> dict[str, Any]:
    """The whole job, as the command runs it."""
    from django_delayq.archive.erasure import Person
    from django_delayq.pipeline import jobs, params_from_django
    from django_delayq.pipeline.params import Storage

    step, lake = STEPS[name], Storage(str(folder / "lake"))
    if name == "erase":
        from django_delayq.pipeline.lake.lake_erasure import LakeErasure

        return {"rows": LakeErasure(lake)(Person(key_prefix=PERSON), True, False).rows}
    source = {"source": str(folder / "source")} if name == "schedule" else {}
    places = {"lake": lake} if step.lake else {}
    start = jobs.Start(master=MASTER, driver_memory=MEMORY)
    with params_from_django.parameters(job={**step.options, **source}, **places) as params:
        report = jobs.run_job(step.job, params, start, _show)
    assert not report.code or name == "audit", report
    wanted = {"forecast": "waiting", "export": "rows", "stats": "rows", "schedule": "added"}
    if name in wanted:
        # Stats leave out the hour that is not over.
        least = rows * 0.99 if name == "stats" else rows
        assert least <= report.figures[wanted[name]] <= rows, report.figures
    return {"code": int(report.code), **{
        key: value for key, value in report.figures.items()
        if isinstance(value, int) and key not in ("seconds", "code")
    }}  # fmt: skip


def _show(text: str, done: int = 0, total: int = 0) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


@contextmanager
def _peaks() -> Iterator[dict[str, float]]:
    """The most resident memory, in bytes, of this process (driver), of its Java, and of the largest
    of the Pythons that Java has started (executor)."""
    peaks = {"driver": 0.0, "java": 0.0, "executor": 0.0}
    ended, tree = threading.Event(), psutil.Process()

    def look() -> None:
        peaks["driver"] = _highest(tree.pid)
        for one in tree.children(recursive=True):
            try:
                part = "java" if one.name() == "java" else "executor"
                peaks[part] = max(peaks[part], _highest(one.pid))
            except (psutil.Error, OSError):
                continue

    def watch() -> None:
        while not ended.wait(EVERY):
            look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
        look()


def _highest(pid: int) -> float:
    """The high-water mark that Linux keeps; 0 for a process that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return float(line.split()[1]) * 1024
    return 0.0


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.monotonic()
    return work(), time.monotonic() - begun


# What is read


def _fill(rows: int, times: int, folder: Path) -> None:
    """The archive, ids that wait for the forecast, and the source of the schedule."""
    seed.fill(rows)
    if times > 1:
        _repeat(times)
    _wait(rows * times)
    _write_source(folder / "source", rows * times)


def _repeat(times: int) -> None:
    """The rows of the archive so many times, each time some days earlier; the oldest come first.
    Only the last ones have keys: under a key there is one message."""
    from django.db import connection

    from django_delayq.models import ArchivedMessage

    table = ArchivedMessage._meta.db_table
    fields = [field for field in ArchivedMessage._meta.concrete_fields if not field.primary_key]
    columns = ", ".join(field.column for field in fields)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE UNLOGGED TABLE once AS SELECT * FROM {table} ORDER BY id")
        cursor.execute(f"TRUNCATE {table}")
        # Indexes take most of the time, and the jobs find the rows by their ids.
        cursor.execute(
            "SELECT conname FROM pg_constraint WHERE contype = 'u' AND conrelid = %s::regclass",
            [table],
        )
        for (name,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        others = "tablename = %s AND indexname NOT LIKE '%%pkey'"
        cursor.execute(f"SELECT indexname FROM pg_indexes WHERE {others}", [table])
        for (name,) in cursor.fetchall():
            cursor.execute(f"DROP INDEX {name}")
        cursor.execute(f"ALTER TABLE {table} SET UNLOGGED")
        for turn in reversed(range(times)):
            chosen = ", ".join(_chosen(field, turn) for field in fields)
            cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {chosen} FROM once ORDER BY id")
        cursor.execute("DROP TABLE once")
        cursor.execute(f"VACUUM ANALYZE {table}")


def _chosen(field: Any, turn: int) -> str:
    if turn and field.column == "message_id":
        return "gen_random_uuid()"
    if turn and field.column == "key":
        return "''"
    if field.get_internal_type() == "DateTimeField" and field.column != "archived_at":
        return f"{field.column} - interval '{seed.PERIOD.days * turn} days'"
    return str(field.column)


def _wait(count: int) -> None:
    """Ids and due times in one lane: a forecast reads nothing else."""
    from django_delayq.store import get_store, keys
    from django_delayq.store.keys import Partition

    store = get_store()
    store.topics.register("waiting", 1)
    lane = keys.partition_keys(store.client.prefix, Partition("waiting", 0))[1]
    now_ms, step = store.clock_ms(), DAYS * 86_400_000 / count
    for at in range(0, count, CHUNK):
        numbers = range(at, min(count, at + CHUNK))
        due = {number.to_bytes(16, "big"): int(now_ms + number * step) for number in numbers}
        store.client.redis.zadd(lane, due)


def _write_source(folder: Path, count: int) -> None:
    """Reminders: a key, a due time within a week, and two arguments."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    for lo in range(0, count, 200_000):
        numbers = np.arange(lo, min(count, lo + 200_000))
        due = (1_900_000_000 + numbers % 604_800) * 1_000_000
        table = pa.table({
            "key": [f"order-{number}" for number in numbers],
            "order_id": numbers,
            "email": [f"customer-{number % 50_000}@example.org" for number in numbers],
            "due_at": pa.array(due).cast(pa.timestamp("us", "UTC")),
        })  # fmt: skip
        parquet.write_table(table, folder / f"{lo:012}.parquet")


if __name__ == "__main__":
    main(sys.argv[1:])
