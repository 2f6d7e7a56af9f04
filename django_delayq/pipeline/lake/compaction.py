"""Rewrites the small files of days that are over as few bigger ones: the same rows, in one
commit."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..job_errors import LakeConflict, LakeError
from ..params import Tell
from . import batches
from .lake import Commit, Lake, LakeFile
from .reader import read_files

#: Bytes. Bigger files stay as they are.
SMALL = 64 * 1024 * 1024


def small_files(lake: Lake, now: datetime) -> list[LakeFile]:
    """Small files of days (UTC) that are over and have several of them."""
    days = defaultdict(list)
    for file in lake.files(until=f"{now - timedelta(days=1):%Y-%m-%d}"):
        if file.bytes < SMALL:
            days[file.dt].append(file)
    return [file for day in days.values() if len(day) > 1 for file in day]


def compact(spark: SparkSession, lake: Lake, now: datetime, tell: Tell) -> dict[str, Any]:
    """Write small_files() again, one file per day, and commit these in their place; sweep() removes
    the old files after its grace. Returns figures. When it is killed, nothing has changed.

    Raises LakeError when the files do not hold what their commits say; LakeConflict when another
    compaction was quicker.
    """
    files = small_files(lake, now)
    if not files:
        return {"compacted_files": 0, "compacted_into": 0}
    tell(f"compacting {len(files):,} files")
    frame = read_files(spark, lake, files)
    days = F.date_format("finished_at", "yyyy-MM-dd")
    attempt = lake.attempt(min(file.lowest for file in files), max(file.highest for file in files))
    spread = frame.repartition(len({file.dt for file in files}), days)
    written = batches.verified(
        spark, lake, lambda: frame, attempt, batches.write_files(spark, spread, attempt)
    )
    # The rows that were read now have to be those that were committed.
    digest = written.digest
    rows, signature = sum(file.rows for file in files), digest.signature
    if all(file.signature for file in files):
        signature = sum(int(file.signature) for file in files)
    if (rows, signature) != (digest.rows, digest.signature):
        raise LakeError(
            f"The files of {files[0].dt} to {files[-1].dt} hold {digest.rows:,} rows with the "
            f"signature {digest.signature}; their commits say {rows:,} and {signature}. Nothing "
            f"is compacted."
        )
    lake.persist(attempt)
    appended = [commit for commit in lake.commits() if commit.kind == "append"][-1]
    commit = Commit.of(
        "compact",
        written,
        settled_at=appended.settled_at,  # the last commit says how far the lake is settled
        removes=[file.path for file in files],
        archive=appended.archive,
    )
    try:
        lake.add(commit)
    except LakeConflict:
        lake.drop(attempt)
        raise
    return {"compacted_files": len(files), "compacted_into": len(written.files)}
