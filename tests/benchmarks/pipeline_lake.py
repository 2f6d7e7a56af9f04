"""A lake after ten thousand commits of eight files: how long it takes to open it, to commit, and to
plan a read of one day. Needs neither Spark nor a database.

The files are links to a small file. Days that are over are compacted as an export does it; at the
end there is one more case, a fifth as long and without any compaction.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from django_delayq.pipeline.lake.files import LakeFile, Store, write_rows
from django_delayq.pipeline.lake.lake import Lake
from tests.benchmarks import common
from tests.pipeline.lakes import batch_of

COMMITS, FILES = 10_000, 8
#: As many as an export makes in a day that begins every ten minutes.
OF_DAY = 144
BEGIN = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
BARS = {"open": 0.3, "commit": 0.5, "plan": 1.0}


def main(arguments: list[str]) -> None:
    """Compacted, and not."""
    options = common.options(arguments, 5)
    commits = options.scaled(COMMITS, 20)
    for compacted in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            count = commits if compacted else max(20, commits // 5)
            _measure(Path(folder, "lake"), count, compacted, options.runs)


def _measure(root: Path, commits: int, compacted: bool, runs: int) -> None:
    begun = time.monotonic()
    lake = _fill(root, commits, compacted)
    filled = time.monotonic() - begun
    day = f"{BEGIN + timedelta(days=commits // OF_DAY // 2):%Y-%m-%d}"

    def plan() -> None:
        assert Lake(root).files(since=day, until=day)

    steps: dict[str, Callable[[], object]] = {
        "open": lambda: Lake(root).last_id,
        "commit": lambda: _append(lake, commits + lake.version),
        "plan": plan,
    }
    for name, step in steps.items():
        seconds = common.median([_timed(step) for _ in range(runs)])
        common.report(
            "pipeline_lake", seconds, "s", case=f"{name}, {'' if compacted else 'not '}compacted",
            bar_s=BARS[name], commits=commits, live_files=len(lake.files()), filled_s=filled,
        )  # fmt: skip


def _fill(root: Path, commits: int, compacted: bool) -> Lake:
    lake = Lake(root)
    lake.create()
    for number in range(commits):
        _append(lake, number)
        if compacted and number % OF_DAY == OF_DAY - 1:
            dt = (BEGIN + timedelta(days=number // OF_DAY)).date()
            day = lake.files(since=str(dt), until=str(dt))
            merged = _linked(lake, number, "merged", 1)[0]
            rows = sum(file.rows for file in day)
            lake.replace("compact", day, [merged._replace(rows=rows, lowest=day[0].lowest)])
    return lake


def _append(lake: Lake, number: int) -> None:
    lake.append(_linked(lake, number, "part", FILES), (lake.last_id, lake.last_id + FILES))


def _linked(lake: Lake, number: int, name: str, count: int) -> list[LakeFile]:
    """So many files of this commit, with the content of another one. A file may have some 60,000
    names."""
    source = Path(lake.uri, f"source-{number // 5_000}")
    if not source.exists():
        (file,) = write_rows(Store(lake.storage), [batch_of([1], BEGIN)], source.name)
        source.hardlink_to(Path(lake.uri, file.path))
    when = BEGIN + timedelta(days=number // OF_DAY)
    at, folder = round(when.timestamp() * 1e6), Path(lake.uri, f"dt={when:%Y-%m-%d}")
    folder.mkdir(exist_ok=True)
    files = []
    for part in range(count):
        path = f"{folder.name}/{name}-{number}-{part}.parquet"
        os.link(source, Path(lake.uri, path))
        pk = lake.last_id + part + 1
        files.append(LakeFile(path, when.date(), source.stat().st_size, 1, pk, pk, at, at))
    return files


def _timed(step: Callable[[], object]) -> float:
    begun = time.monotonic()
    step()
    return time.monotonic() - begun


if __name__ == "__main__":
    main(sys.argv[1:])
