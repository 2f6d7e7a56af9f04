"""`export --interval` over two million rows, with three kill -9 of its driver and Java: nothing is lost,
nothing twice.

PostgreSQL, or with --one the database of the environment; --seeded: its rows are there already.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from django_delayq.pipeline.lake.lake import Lake
from tests import databases
from tests.benchmarks import common, on_database, seed
from tests.benchmarks.peers.catalogue import ROOT
from tests.benchmarks.versus import watched

ROWS, BATCH = 2_000_000, 100_000
KILLS = 3
JOB = """
import sys
from pathlib import Path
from django_delayq.pipeline import session
from django_delayq.pipeline import params_from_django
from django_delayq.pipeline.params import Params
params = Params.decode(Path(sys.argv[1]).read_bytes())
params_from_django.set_up(params)
from django_delayq.pipeline.export import export
report = export.run(session.build_session("local[2]", "1g"), params, lambda line, *_: print(line, file=sys.stderr))
print(report.figures)
"""


class Run(NamedTuple):
    """One process of the export."""

    code: int
    seconds: float
    peak: int
    """Bytes of it and its children."""


def main(arguments: list[str]) -> None:
    """On PostgreSQL; on SQLite where that is not installed."""
    kind = "sqlite" if databases.missing("postgresql") else "postgresql"
    own = on_database.arguments_of("pipeline_interval", (kind,), arguments)
    if own is None:
        return
    options = common.options([one for one in own if one != "--seeded"], 1)
    seed.set_up()
    if "--seeded" not in own:
        seed.fill(options.scaled(ROWS, 2_000))
    folder = ROOT / ".bench"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        measure(Path(place), options)


def measure(folder: Path, options: common.Options) -> None:
    """Kill it three times, let it end, and count."""
    from django_delayq.pipeline import params_from_django

    lake = Lake(folder / "lake")
    batch = options.scaled(BATCH, 500)
    rows = _rows_in_sql()
    with params_from_django.parameters(
        lake=lake.storage, job={"settle": 0, "batch": batch, "interval": 1}
    ) as params:
        file = folder / "params.json"
        file.write_bytes(params.encode())
        dice = random.Random(1)
        marks = [rows * (kill + 1) // (KILLS + 1) for kill in range(KILLS)]
        runs = [_run(file, lake, mark, dice) for mark in marks]
        runs.append(_run(file, lake, None, dice, _last_id_in_sql()))
    _report(lake, rows, batch, runs)


def _run(file: Path, lake: Lake, mark: int | None, dice: random.Random, last: int = 0) -> Run:
    """One process; killed with all its children soon after the lake has so many ids, at any moment
    of a batch."""
    begun, peak = time.monotonic(), 0
    environment = {
        name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"
    }
    process = psutil.Popen(
        [sys.executable, "-c", JOB, str(file)], env=environment, start_new_session=True
    )
    while process.poll() is None:
        peak = max(peak, watched.resident(process))
        lake.refresh()
        if mark is None:
            if lake.last_id >= last:
                process.terminate()  # it ends by itself, after what it is at
        elif lake.last_id >= mark:
            time.sleep(dice.uniform(0, 2))
            watched.end(process)
            process.wait()
        time.sleep(0.1)
    run = Run(process.returncode, time.monotonic() - begun, peak)
    print(
        f"  ended with {run.code} after {run.seconds:.0f} s, the lake has ids up to "
        f"{lake.last_id:,}",
        flush=True,
    )
    return run


def _rows_in_sql() -> int:
    from django_delayq.models import ArchivedMessage

    return ArchivedMessage.objects.count()


def _last_id_in_sql() -> int:
    from django_delayq.models import ArchivedMessage

    return ArchivedMessage.objects.order_by("-pk").values_list("pk", flat=True)[0]


def _counted(lake: Lake) -> tuple[int, int]:
    """Rows and distinct ids, by the lake's log and without Spark."""
    import numpy as np
    from pyarrow import parquet

    ids = parquet.read_table(lake.uris(), columns=["id"], partitioning=None)["id"].to_numpy()
    return len(ids), len(np.unique(ids))


def _report(lake: Lake, rows: int, batch: int, runs: list[Run]) -> None:
    kind = databases.kind_of(json.loads(os.environ[databases.VARIABLE]))
    lake.refresh()
    found, distinct = _counted(lake)
    seconds = sum(run.seconds for run in runs)
    kills = sum(run.code == -signal.SIGKILL for run in runs)
    known: dict[str, Any] = {
        "rows": found,
        "distinct": distinct,
        "sql": rows,
        "kills": kills,
        "batch": batch,
    }
    differing = 0 if found == distinct == rows else abs(found - rows) + abs(found - distinct)
    common.report(
        "pipeline_interval", rows / seconds, "rows/s", case=kind, differing=differing, bar_differing=0, **known,
        seconds=seconds, last_run_s=runs[-1].seconds, commits=lake.version,
        rss_mb=max(run.peak for run in runs) / 1e6,
    )  # fmt: skip
    if differing or kills != KILLS or runs[-1].code:
        raise SystemExit(f"FAILED: {known}, the last run ended with {runs[-1].code}")


if __name__ == "__main__":
    main(sys.argv[1:])
