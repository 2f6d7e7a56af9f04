"""Writers that are broken off in the middle. A module of its own: Spark's Python workers import
it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from django_delayq.pipeline.sinks.loader import Loader
from django_delayq.pipeline.sinks.queue_sink import QueueWriter, WrittenMessages
from django_delayq.store.store import RedisStore


class FailingWriter(QueueWriter):
    """Fails in the tasks of Spark with an odd number, always: their first rows are applied by
    then."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """One task of Spark."""

        def broken() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch.slice(0, 20)
                if TaskContext.get().partitionId() % 2:  # type: ignore[union-attr]
                    raise RuntimeError("the machine has gone")
                yield batch.slice(20)

        return super().write(broken())


#: In Redis: how many processes were killed.
KILLS = "delayq_test:kills"


class KilledWriter(QueueWriter):
    """kill -9 of the Python process of half of the tasks, in their first attempt and after 20
    calls."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenMessages:
        """One task of Spark."""
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() or context.partitionId() % 2 == 0:
            return super().write(iterator)
        with closing(RedisStore(None, self._redis.settings())) as store:
            load, calls = store.bulk_load.load, [0]
            most = 20 if (self._load.rows or 0) >= 500_000 else 1  # at small scales there are less

            def counted(*arguments: Any) -> Any:
                calls[0] += 1
                if calls[0] > most:
                    store.client.redis.incr(KILLS)
                    os.kill(os.getpid(), signal.SIGKILL)
                return load(*arguments)

            store.bulk_load.load = counted  # type: ignore[method-assign]
            return WrittenMessages(*Loader(store, self._load).run(iterator))
