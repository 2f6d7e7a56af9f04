"""Rewrites the small files of days that are over as few bigger ones: the same rows, a commit for
each new file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import attrgetter

from pyspark.sql import SparkSession

from ...core.chunks import chunked_by_weight
from ...core.job_report import Tell
from ..job_errors import LakeConflict, LakeError
from ..session import parallelism
from .batches import merge
from .files import LakeFile
from .lake import Lake

#: Bytes. Bigger files stay as they are, and files are put together up to twice as much.
SMALL = 64 * 1024 * 1024


def groups(lake: Lake, now: datetime) -> list[Sequence[LakeFile]]:
    """Small files of days (UTC) that are over: those of each group become one file."""
    past = lake.files(until=f"{now - timedelta(days=1):%Y-%m-%d}")
    small = [file for file in past if file.bytes < SMALL]
    return [
        group
        for _, of_day in groupby(small, attrgetter("dt"))
        for group in chunked_by_weight(of_day, attrgetter("bytes"), 2 * SMALL)
        if len(group) > 1
    ]


def compact(spark: SparkSession, lake: Lake, now: datetime, tell: Tell) -> dict[str, int]:
    """Put the files of each group together; tidy() deletes the old files later. Returns figures.
    When it is killed, some groups are done. A group whose files another process has replaced
    meanwhile is left alone. Raises LakeError when a file is not as the log says."""
    waiting = groups(lake, now)
    total, wave, new = sum(map(len, waiting)), 4 * parallelism(spark), 0
    done = 0
    for at in range(0, len(waiting), wave):
        together = waiting[at : at + wave]
        for files, merged in zip(together, merge(spark, lake.storage, together), strict=True):
            rows = sum(file.rows for file in files)
            edges = (min(file.lowest for file in files), max(file.highest for file in files))
            if (merged.rows, merged.lowest, merged.highest) != (rows, *edges):
                raise LakeError(
                    f"{merged.path} has {merged.rows:,} rows, and the files that it is of have "
                    f"{rows:,}, or others: it is not committed."
                )
            try:
                lake.replace("compact", files, [merged])
            except LakeConflict:
                continue
            done, new = done + len(files), new + 1
        tell(f"compacted {done:,} files into {new:,}", done, total)
    return {"compacted_files": done, "compacted_into": new}
