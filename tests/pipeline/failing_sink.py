"""A sink whose tasks are broken off in the middle. A module of its own: Spark's Python workers
import it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from django_delayq.pipeline.sinks.loader import Loader
from django_delayq.pipeline.sinks.queue_sink import PACKED, QueueSink, QueueWriter, WrittenMessages


class FailingSink(QueueSink):
    """Half of the tasks of Spark fail after what `delayq_failing` says: their first rows are
    applied by then."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_failing"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of the same options."""
        return FailingWriter(self.options, is_packed=schema.names == [PACKED])


class FailingWriter(QueueWriter):
    """Fails in the tasks with an odd number, always."""

    def messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Of one task of Spark."""
        for batch in super().messages(batches):
            yield batch.slice(0, 20)
            if TaskContext.get().partitionId() % 2:  # type: ignore[union-attr]
                raise RuntimeError("the machine has gone")
            yield batch.slice(20)


#: In Redis: how many processes were killed.
KILLS = "delayq_test:kills"


class KilledSink(QueueSink):
    """Half of the tasks of Spark are killed in their first attempt, after 20 calls."""

    @classmethod
    def name(cls) -> str:
        """For format()."""
        return "delayq_killed"

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of the same options."""
        return KilledWriter(self.options, is_packed=schema.names == [PACKED])


class KilledWriter(QueueWriter):
    """kill -9 of the Python process."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        """One task of Spark."""
        from django_delayq.store.store import RedisStore

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() or context.partitionId() % 2 == 0:
            return super().write(iterator)
        store = RedisStore(None, self._redis.settings())
        load, calls = store.bulk_load.load, [0]
        most = 20 if (self._load.rows or 0) >= 500_000 else 1  # at small scales a task has no more

        def counted(*arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] > most:
                store.client.redis.incr(KILLS)
                os.kill(os.getpid(), signal.SIGKILL)
            return load(*arguments)

        store.bulk_load.load = counted  # type: ignore[method-assign]
        return WrittenMessages(*Loader(store, self._load).run(self.messages(iterator)))
