"""df.write.format("delayq"): a frame of messages (bulk_load/messages.py) into the queue, each
message once.

It runs on executors. A task of Spark, or the whole load, can be repeated: see loader.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from ...core.exceptions import DelayQError
from ...store import open_store
from ..job_errors import Refused
from ..params import Redis
from ..schemas import MESSAGES
from ..source_options import read_option
from .loader import Loader, LoadSpec


@dataclass
class WrittenMessages(WriterCommitMessage):
    """What one task of Spark has written."""

    splits: Sequence[tuple[Any, ...]] = ()
    rows: int = 0
    """All messages that the task got, also those that were there."""


class QueueSink(DataSource):
    """Options: `redis` (JSON of params.Redis), `load` (JSON of LoadSpec). Mode: append."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Raises Refused for a frame that does not hold messages, and ConfigurationError."""
        missing = [name for name in MESSAGES.names if name not in schema.names]
        if missing:
            raise Refused(
                f"This frame has no {', '.join(missing)}: format('delayq') writes frames of "
                f"messages. "
                "Make one with the job schedule, or with django_delayq.pipeline.bulk_load.messages."
            )
        if overwrite:
            raise Refused(
                "A queue cannot be overwritten: use mode('append'). To empty a topic, call purge()."
            )
        return QueueWriter(
            read_option(self.options, "redis", Redis), read_option(self.options, "load", LoadSpec)
        )


class QueueWriter(DataSourceArrowWriter):
    """It can be pickled: only write() opens a connection. When the job is aborted, messages that
    were written stay: the fence knows them, and the load can be repeated."""

    def __init__(self, redis: Redis, load: LoadSpec) -> None:
        self._redis, self._load = redis, load

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """One task of Spark."""
        with closing(open_store(self._redis.settings())) as store:
            return WrittenMessages(*Loader(store, self._load).run(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check what the tasks report: each message went through one task, and each split through
        one task alone."""
        done = [result for result in messages if isinstance(result, WrittenMessages)]
        splits = [split for result in done for split in result.splits]
        if len(splits) != len(set(splits)):
            raise DelayQError(
                "A split was written by two tasks of Spark. repartition() the frame by its columns "
                "first."
            )
        rows = sum(result.rows for result in done)
        if self._load.rows is not None and rows != self._load.rows:
            raise DelayQError(
                f"{rows:,} messages were written of {self._load.rows:,}: the source has changed "
                f"meanwhile."
            )
