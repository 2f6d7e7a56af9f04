"""Asks Redis about suspects, on the executors: which of them are damaged, and how."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from ...store.keys import Partition
from ...store.store import RedisStore
from .. import schemas
from ..params import Redis
from .findings import KINDS

SUSPECTS = pa.schema([schemas.QUEUE.field(name) for name in ("message_id", "topic", "partition")])
DIAGNOSED = SUSPECTS.append(pa.field("stamp", pa.int64())).append(pa.field("kind", pa.string()))


def diagnosed(suspects: DataFrame, redis: Redis) -> DataFrame:
    """One row for each damage of each suspect. Both frames: see the schemas above."""
    function = partial(_diagnosed, redis=redis)
    return suspects.select(*SUSPECTS.names).mapInArrow(function, from_arrow_schema(DIAGNOSED))


def _diagnosed(batches: Iterable[pa.RecordBatch], redis: Redis) -> Iterator[pa.RecordBatch]:
    with closing(RedisStore(None, redis.settings())) as store:
        for batch in batches:
            parts: dict[Partition, list[bytes]] = defaultdict(list)
            for suspect in batch.to_pylist():
                partition = Partition(suspect["topic"], suspect["partition"])
                parts[partition].append(bytes.fromhex(suspect["message_id"]))
            rows = [
                {
                    "message_id": message_id.hex(),
                    "topic": partition.topic,
                    "partition": partition.number,
                    "stamp": stamp_us,
                    "kind": KINDS[damage].value,
                }
                for partition, ids in parts.items()
                for message_id, stamp_us, damages in store.repair.diagnose(partition, ids)
                for damage in damages
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=DIAGNOSED)
