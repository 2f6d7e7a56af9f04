"""Rewrites the small files of days that are over as few bigger ones: the same rows, a commit for
each new file."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from ..job_errors import LakeConflict, LakeError
from ..params import Tell
from ..session import parallelism
from .batches import Merge, merge
from .files import LakeFile, new_name
from .lake import Lake

#: Bytes. Bigger files stay as they are, and files are put together up to about twice as much.
SMALL = 64 * 1024 * 1024


def groups(lake: Lake, now: datetime) -> list[list[LakeFile]]:
    """Small files of days (UTC) that are over: those of each group become one file."""
    days = defaultdict(list)
    for file in lake.files(until=f"{now - timedelta(days=1):%Y-%m-%d}"):
        if file.bytes < SMALL:
            days[file.dt].append(file)
    found: list[list[LakeFile]] = []
    for files in days.values():
        size = SMALL
        for file in files:
            if size >= SMALL:
                found.append([])
                size = 0
            found[-1].append(file)
            size += file.bytes
    return [group for group in found if len(group) > 1]


def compact(spark: SparkSession, lake: Lake, now: datetime, tell: Tell) -> dict[str, int]:
    """Put the files of each group together; tidy() deletes the old files later. Returns figures.
    When it is killed, some groups are done. A group whose files another process has replaced
    meanwhile is left alone. Raises LakeError when a file is not as the log says."""
    waiting = groups(lake, now)
    total, wave, new = sum(map(len, waiting)), 4 * parallelism(spark), 0
    done = 0
    for at in range(0, len(waiting), wave):
        together = waiting[at : at + wave]
        names = (new_name((files[0].lowest, files[-1].highest)) for files in together)
        merges = [
            Merge(f"dt={files[0].dt}/{name}.parquet", files)
            for name, files in zip(names, together, strict=True)
        ]
        for files, merged in zip(together, merge(spark, lake.storage, merges), strict=True):
            if merged.rows != (rows := sum(file.rows for file in files)):
                raise LakeError(
                    f"{merged.path} has {merged.rows:,} rows, and the files that it is of have "
                    f"{rows:,}: it is not committed."
                )
            try:
                lake.replace("compact", files, [merged])
            except LakeConflict:
                continue
            done, new = done + len(files), new + 1
        tell(f"compacted {done:,} files into {new:,}", done, total)
    return {"compacted_files": done, "compacted_into": new}
