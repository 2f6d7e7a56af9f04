"""The folder for rows that the job schedule refuses."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ..errors import Refused
from ..options import ScheduleOptions

#: What Spark writes: parts, their checksums, and that it has ended.
_OURS = r"\.?part-.*|\.?_SUCCESS(\.crc)?|_temporary"


def folder_of(options: ScheduleOptions) -> str:
    """DIR/JOB.rejects; DIR may be a URI."""
    return f"{options.rejects.rstrip('/')}/{options.job}.rejects"


def check_folder(spark: SparkSession, options: ScheduleOptions) -> None:
    """Raise Refused for a folder that is to be replaced, but is the source's or has what is not
    ours."""
    system, path = _path(spark, folder_of(options))
    if options.format in ("parquet", "csv", "json"):
        source, target = (
            str(_path(spark, one)[1].toString()) for one in (options.source, folder_of(options))
        )
        if f"{source}/".startswith(f"{target}/") or target.startswith(f"{source}/"):
            raise Refused(
                f"The rejects would go to {target}, and the source is {source}: give them another "
                f"directory."
            )
    found = (
        [str(one.getPath().getName()) for one in system.listStatus(path)]
        if system.exists(path)
        else []
    )
    if strange := [name for name in sorted(found) if not re.fullmatch(_OURS, name)]:
        raise Refused(
            f"{folder_of(options)} is replaced by the rejects, but has {strange[0]}, which this "
            f"job did not write: "
            "give another directory."
        )


def write(frame: DataFrame, options: ScheduleOptions) -> None:
    """As JSON lines. Those of an earlier run of the job are replaced."""
    frame.coalesce(1).write.mode("overwrite").json(folder_of(options))


def _path(spark: Any, text: str) -> tuple[Any, Any]:
    """The file system of a path, as Hadoop has it, and the path in full."""
    path = spark._jvm.org.apache.hadoop.fs.Path(text)
    system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    return system, system.makeQualified(path)
