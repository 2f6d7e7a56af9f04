"""The export of two million rows: from PostgreSQL to a lake, verified and committed, with 1 GB of
driver memory; and beside it, by turns, the binary COPY of the same rows to Arrow by two processes
that drop them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import psutil

from tests import databases
from tests.benchmarks import common, on_database, seed

ROWS = 2_000_000
#: Of the rate of the raw copy.
LEAST_RATIO = 0.35
MASTER, MEMORY = "local[2]", "1g"
#: Rows of the first, small export: Spark's start is not what is measured.
WARM_UP = 20_000


def main(arguments: list[str]) -> None:
    """On PostgreSQL. --seeded: its rows are there already."""
    own = on_database.arguments_of("pipeline_export", ("postgresql",), arguments)
    if own is None:
        return
    known = common.options([one for one in own if one != "--seeded"], 1)
    measure(known, "--seeded" in own)


def measure(options: common.Options, seeded: bool) -> None:
    """One database."""
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    seed.set_up()
    rows = options.scaled(ROWS, 2_000)
    took = None if seeded else seed.fill(rows)
    from django_delayq.pipeline.session import build_session

    spark = build_session(MASTER, MEMORY)
    try:
        for run in range(options.runs + 1):
            with tempfile.TemporaryDirectory() as folder:
                figures = _export(spark, folder, min(WARM_UP, rows) if run == 0 else rows)
            raw = raw_rate(min(WARM_UP, rows) if run == 0 else rows)
            if run:
                figures |= {
                    "raw_per_second": raw,
                    "of_raw_copy": figures["rows_per_second"] / raw,
                    "bar_of_raw_copy": LEAST_RATIO,
                }
                common.report(
                    "pipeline_export", figures.pop("rows_per_second"), "rows/s", case=kind,
                    memory=MEMORY, seed_s=took, **figures,
                )  # fmt: skip
    finally:
        spark.stop()


def _export(spark: Any, folder: str, rows: int) -> dict[str, Any]:
    """So many rows, oldest first."""
    from django.db.models import Min

    from django_delayq.models import ArchivedMessage, LakeBatch
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.export import export
    from django_delayq.pipeline.params import Storage

    LakeBatch.objects.all().delete()
    first = ArchivedMessage.objects.aggregate(first=Min("pk"))["first"]
    last_settled_id = export.last_settled_id
    changed: Any = export
    changed.last_settled_id = lambda seconds: first + rows - 1
    begun = time.monotonic()
    try:
        with (
            params_from_django.parameters(
                lake=Storage(f"{folder}/lake"), job={"settle": 0, "compact": False}
            ) as params,
            peak_memory() as peak,
        ):
            report = export.run(spark, params, lambda line, *_: print(f"  {line}", flush=True))
    finally:
        changed.last_settled_id = last_settled_id
    seconds = time.monotonic() - begun
    assert report.figures["rows"] == rows, report
    return {
        "rows_per_second": rows / seconds,
        "seconds": seconds,
        "rows": rows,
        "bytes_per_row": report.figures["bytes"] / rows,
        "files": report.figures["files"],
        "peak_rss_mb": peak[0] / 1e6,
    }


def raw_rate(rows: int, reader: str = "auto") -> float:
    """Rows a second of the first so many, read to Arrow by two processes and dropped."""
    from django.db.models import Min

    from django_delayq.models import ArchivedMessage
    from django_delayq.pipeline import params_from_django
    from django_delayq.pipeline.sources.ranges import edges

    first = ArchivedMessage.objects.aggregate(first=Min("pk"))["first"]
    with (
        params_from_django.parameters() as params,
        ProcessPoolExecutor(2, get_context("spawn")) as pool,
    ):
        ids = (first - 1, first + rows - 1)
        ranges = edges(params.database, ids, 8)
        list(pool.map(partial(_read, params.database), [(0, 0)] * 2))  # the imports
        begun = time.monotonic()
        read = sum(pool.map(partial(_read, params.database, reader=reader), ranges))
        seconds = time.monotonic() - begun
    assert read == rows
    return rows / seconds


def _read(database: Any, ids: tuple[int, int], reader: str = "auto") -> int:
    from django_delayq.pipeline import schemas
    from django_delayq.pipeline.sources.table_reader import read_rows

    return sum(batch.num_rows for batch in read_rows(database, schemas.ARCHIVE, ids, reader=reader))


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """The most memory that this process and its children had: what they share counts once where the
    system tells."""
    peak, ended, tree = [0.0], threading.Event(), psutil.Process()

    def watch() -> None:
        while not ended.wait(0.5):
            peak[0] = max(peak[0], sum(map(_memory, [tree, *tree.children(recursive=True)])))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def _memory(process: psutil.Process) -> float:
    try:
        full = process.memory_full_info()
        return float(getattr(full, "pss", full.rss))
    except psutil.Error:
        return 0.0


if __name__ == "__main__":
    main(sys.argv[1:])
