"""Replaces a batch of the lake by what SQL has: for rows that are missing in the lake, are too many, or differ."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from ..models import LakeBatch
from . import batches
from .errors import LakeConflict, Refused
from .lake import Commit, Lake
from .ledger import Ledger
from .params import Params
from .sources.archive import read_archive
from .sources.lake import read_files


def repair(
    spark: SparkSession, params: Params, lake: Lake, lo: int, hi: int, tell: Callable[[str], object] = bool
) -> Commit:
    """Read the batch of these ids (lo < id <= hi) from SQL anew and commit it in place of its rows in the lake.

    What else the files had that it replaces is written again. Raises Refused for what is no committed batch, and for
    one that is pruned: SQL does not have it any more. Raises LakeConflict when another writer was quicker.
    """
    ledger = Ledger(lake)
    ledger.follow()
    _check(ledger.batches.filter(lo=lo, hi=hi, seq__isnull=False).first(), lo, hi)
    within = (F.col("id") > lo) & (F.col("id") <= hi)
    files = [file for file in lake.files() if file.lowest <= hi and (file.highest > lo or not file.highest)]
    old, new = read_files(spark, lake, files), read_archive(spark, params.database, (lo, hi))
    attempt = lake.attempt(lo, hi, ledger.archive)
    frame = old.where(~within).unionByName(new)
    written = batches.verified(spark, lake, frame, attempt, batches.write(spark, frame, attempt))
    batch, content = batches.content_of(new), written.content
    hours = sorted({*written.hours, *_hours(old, within)})
    lake.persist(attempt)
    appended = [commit for commit in lake.commits() if commit.kind == "append"][-1]
    commit = Commit(
        seq=0, kind="repair", lo=lo, hi=hi, rows=content.rows, signature=str(content.signature),
        oldest=content.oldest, newest=content.newest, hours=hours, settled_at=appended.settled_at,
        files=written.files, removes=[file.path for file in files], batch_rows=batch.rows,
        batch_signature=str(batch.signature), archive=ledger.archive,
    )  # fmt: skip
    try:
        commit = lake.add(commit)
    except LakeConflict:
        shutil.rmtree(attempt, ignore_errors=True)
        raise
    ledger.committed(commit)
    tell(f"repaired {batch.rows:,} rows up to id {hi:,}")
    return commit


def _check(batch: LakeBatch | None, lo: int, hi: int) -> None:
    if batch is None:
        raise Refused(f"The ids {lo + 1:,} to {hi:,} are no committed batch of the lake.")
    if batch.pruned:
        raise Refused(f"SQL does not have all of the ids {lo + 1:,} to {hi:,} any more: they are pruned.")


def _hours(frame: DataFrame, within: Column) -> list[str]:
    hour = F.date_format("finished_at", "yyyy-MM-dd'T'HH:00:00'Z'").alias("hour")
    return [row["hour"] for row in frame.where(within).select(hour).distinct().collect()]
