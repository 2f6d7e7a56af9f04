"""The job schedule over a million rows of Parquet: once, again, with killed tasks, and after some
have finished."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django_delayq.core.message import Priority
from tests.benchmarks import common

ROWS = 1_000_000
PARTITIONS = 4
FINISHED = 4_000
RUNS = 3
#: Of the whole job in a running session, Redis on the same machine: part of the rate of a client
#: that sends the same scripts, ready-made, and does nothing else.
BAR_RATIO = 0.8
#: Of the job that adds nothing any more, and of that whose tasks are killed: what they must add.
BAR_AGAIN = 0


def main(arguments: list[str]) -> None:
    """Every case on one Redis, emptied in between."""
    options = common.options(arguments, RUNS)
    rows = options.scaled(ROWS, 2_000)
    folder = tempfile.TemporaryDirectory(prefix="delayq-schedule-")
    with common.bench_server() as server, folder as name:
        begun = time.perf_counter()
        with session() as spark:
            start_s = time.perf_counter() - begun
            path = str(Path(name, "rows"))
            source(spark, path, rows)
            schedule(spark, server.url, path, "warm-up")
            measure(spark, server, path, rows, options.runs, start_s)
            killed(spark, server, path, rows)


def measure(spark: Any, server: Any, path: str, rows: int, runs: int, start_s: float) -> None:
    """The whole job, beside a raw client and `send --file`, by turns; the same again; again when
    some have finished."""
    seconds, alone, raw, added = [], [], [], 0
    messages = prepared(path)
    for number in range(runs):
        server.client().flushall()
        raw.append(sent_raw(server.url, messages))
        server.client().flushall()
        alone.append(send_alone(server.url, path, f"run-{number}"))
        server.client().flushall()
        taken, added = schedule(spark, server.url, path, f"run-{number}")
        seconds.append(taken)
    bare, ours = common.median(raw), common.median(alone)
    common.report(
        "pipeline_schedule", bare / common.median(seconds), "of the rate of a raw client", case="against raw",
        bar_ratio=BAR_RATIO, spark_s=common.median(seconds), raw_s=bare, one_process=bare / ours,
        one_process_s=ours, start_s=start_s, with_start=bare / (start_s + common.median(seconds)),
        rows=rows,
    )  # fmt: skip
    used = server.client().info("memory")["used_memory"]
    last = f"run-{runs - 1}"
    again_s, again = schedule(spark, server.url, path, last)
    ended = finish(server.url, min(FINISHED, rows // 2))
    _, back = schedule(spark, server.url, path, last)
    left = count(server.url)
    best = common.median(seconds)
    common.report(
        "pipeline_schedule", best, "s", rows=rows, rows_per_second=rows / best, slowest_s=max(seconds),
        added=added, again_s=again_s, added_again=again, bar_added_again=BAR_AGAIN, finished=ended,
        came_back=back, left=left, bytes_per_message=used / rows,
    )  # fmt: skip
    assert (added, again, back, left) == (rows, 0, 0, rows - ended)


def _maker(path: str, job: str) -> Any:
    """What makes messages of the files, the files, and the options."""
    from datetime import datetime, timezone

    from django_delayq.pipeline.bulk_load import row_messages
    from django_delayq.pipeline.bulk_load.row_files import open_rows
    from django_delayq.pipeline.bulk_load.row_messages import MessageMaker
    from django_delayq.pipeline.params import ScheduleOptions

    files = sorted(str(one) for one in Path(path).glob("*.parquet"))
    options = ScheduleOptions(
        job=job, task=_task(), source=files[0], format="parquet", key="key", due="due_at"
    )
    maker = MessageMaker(
        planned=row_messages.plan(options, open_rows(files[0], "parquet").schema),
        now=datetime.now(tz=timezone.utc), limit=65_536, partitions=PARTITIONS,
    )  # fmt: skip
    return maker, files, options


def prepared(path: str) -> list[Any]:
    """All calls of the load script, ready to be sent: partition, split and messages of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from django_delayq.pipeline.bulk_load.row_files import open_rows
    from django_delayq.pipeline.sinks.loader import load_arguments
    from django_delayq.store.keys import Partition

    maker, files, _ = _maker(path, "raw")
    made = [
        maker.made(lines.rows) for file in files for lines in open_rows(file, "parquet").batches()
    ]
    whole = pa.Table.from_batches(made).sort_by([("cell", "ascending"), ("id", "ascending")])
    calls = []
    for cell in range(PARTITIONS * 4):
        mine = maker.as_messages(whole.filter(pc.equal(whole["cell"], cell)))
        for batch in mine.combine_chunks().to_batches(500):
            partition = Partition("reminders", cell // 4)
            calls.append((partition, cell % 4, load_arguments(batch, 0, 1 << 30)))
    return calls


def sent_raw(url: str, calls: list[Any]) -> float:
    """Seconds of a client that only sends them."""
    from django_delayq.core.message import task_code
    from django_delayq.store.bulk_load import BulkLoad

    store, load = _store(url), BulkLoad("raw", "raw")
    tasks = {task_code("shop.remind"): "shop.remind"}
    begun = time.perf_counter()
    for partition, split, messages in calls:
        # One after the other: the fence passes what comes before an id that is there.
        store.bulk_load.load(partition, load, split, tasks, messages)()()
    return time.perf_counter() - begun


def send_alone(url: str, path: str, job: str) -> float:
    """Seconds of `send --file` for all files, in this process and without Spark."""
    import msgspec

    from django_delayq.pipeline.bulk_load.send_file import send_file

    _, files, options = _maker(path, job)
    store = _store(url)
    begun = time.perf_counter()
    for nth, file in enumerate(files):
        given = msgspec.structs.replace(options, source=file, job=f"{job}-{nth}")
        send_file(store, given, lambda *step: None)
    return time.perf_counter() - begun


def killed(spark: Any, server: Any, path: str, rows: int) -> None:
    """Half of the tasks of Spark are killed in their first attempt, after 20 calls."""
    from django_delayq.pipeline.bulk_load import schedule as job
    from tests.pipeline.failing_writers import KILLS, KilledWriter

    server.client().flushall()
    writer, job.WRITER = job.WRITER, KilledWriter
    try:
        seconds, added = schedule(spark, server.url, path, "killed")
    finally:
        job.WRITER = writer
    common.report(
        "pipeline_schedule", seconds, "s", case="killed", rows=rows, added=added, waiting=count(server.url)
    )  # fmt: skip
    assert (added, count(server.url)) == (rows, rows)
    assert int(server.client().get(KILLS) or 0) > 0, "nobody was killed"


@contextmanager
def session() -> Iterator[Any]:
    """As the command starts it, but that a task of Spark is tried again."""
    from django_delayq.pipeline.session import build_session

    spark = build_session("local[2,4]")
    try:
        yield spark
    finally:
        spark.stop()


def source(spark: Any, path: str, rows: int) -> None:
    """Reminders: a key, a due time within a week, and three arguments."""
    columns = (
        "concat('order-', id) AS key", "id AS order_id", "concat('customer-', id % 50000, '@example.org') AS email",
        "round(rand(7) * 100, 2) AS amount", "timestamp_seconds(1900000000 + id % 604800) AS due_at",
    )  # fmt: skip
    spark.range(0, rows, 1, 8).selectExpr(*columns).write.parquet(path)


def schedule(spark: Any, url: str, path: str, job: str) -> tuple[float, int]:
    """Seconds of the job, and how many messages it has added."""
    import msgspec

    from django_delayq.pipeline.jobs import run
    from django_delayq.pipeline.params import Database, Params, Redis, Secret

    task = _task()
    with tempfile.NamedTemporaryFile("w", suffix=".url") as secret:
        secret.write(url)
        secret.flush()
        redis = Redis(
            Secret(f"file:{secret.name}"), {"TOPICS": {"reminders": {"partitions": PARTITIONS}}}
        )
        options = {"job": job, "task": msgspec.to_builtins(task), "source": path, "format": "parquet", "key": "key",
                   "due": "due_at"}  # fmt: skip
        database = Database(engine="django.db.backends.sqlite3", name="", table="")
        begun = time.perf_counter()
        report = run("schedule", spark, Params(database=database, redis=redis, job=options))
        return time.perf_counter() - begun, report.figures["added"]


def _task() -> Any:
    from django_delayq.pipeline.params import ParameterSpec, TaskSpec

    kinds = {"order_id": "int", "email": "str", "amount": "float"}
    parameters = [
        ParameterSpec(name=name, kind="both", annotation=kind) for name, kind in kinds.items()
    ]
    return TaskSpec(name="shop.remind", topic="reminders", ttr_ms=60_000, parameters=parameters)


def _store(url: str) -> Any:
    from django_delayq.core.conf import parse_settings
    from django_delayq.store.store import RedisStore

    return RedisStore(
        None, parse_settings({"REDIS": url, "TOPICS": {"reminders": {"partitions": PARTITIONS}}})
    )


def count(url: str) -> int:
    """Messages that wait."""
    store = _store(url)
    return sum(
        stats.waiting for stats in store.queries.all_stats(store.partitions.all("reminders"))
    )


def finish(url: str, most: int) -> int:
    """Take so many and finish them, as if they had been due."""
    store, ended = _store(url), 0
    for partition in store.partitions.all("reminders"):
        left = most // PARTITIONS
        while left and (page := store.queries.list(partition, Priority.NORMAL, None, left)):
            for one in page:
                store.reschedule_in(partition, one.id, "1000")
            leases = store.claim(partition, len(page)).leases
            store.ack(partition, [(lease, b"{}") for lease in leases])
            ended, left = ended + len(leases), left - len(leases)
    return ended


if __name__ == "__main__":
    main(sys.argv[1:])
