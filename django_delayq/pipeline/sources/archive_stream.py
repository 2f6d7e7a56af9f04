"""spark.readStream.format("delayq_archive"): the archive as it grows, as a source of Structured
Streaming.

An offset is {"id": n}: everything up to that id has been taken. Runs in a process of Spark's beside
the driver and on executors, which know no Django settings: a connection is made of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ...core.exceptions import ConfigurationError
from .. import schemas
from ..params import Database
from . import ranges, rows
from .archive import IdRange, checked_columns, database_of, number_of
from .connect import connected
from .settling import last_settled

#: Rows in one micro-batch, and seconds after which a row is settled, where the options do not say.
BATCH, SETTLE = 500_000, 60.0


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Options:

    - `database`: JSON of params.Database;
    - `after`: a stream without a checkpoint begins behind this id (0);
    - `batch`: rows of a micro-batch (500,000);
    - `settle`: seconds, see settling.py (60);
    - `parts`: ranges that are read side by side (8), fewer when there are few rows.

    Picklable: no connection outside of a method. Raises ConfigurationError.
    """

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._schema = checked_columns(schema, schemas.ARCHIVE)
        self._database: Database = database_of(options)
        self._after = number_of(options, "after") or 0
        self._batch = number_of(options, "batch") or BATCH
        self._settle = _seconds(options.get("settle", str(SETTLE)))
        self._parts = max(1, number_of(options, "parts") or ranges.PARTS)
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - these names are Spark's
        """Where a stream begins that has no checkpoint."""
        return {"id": self._after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Rows of a micro-batch."""
        return ReadMaxRows(self._batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is settled now is all that this run takes."""
        with connected(self._database, plain=True) as connection:
            self._target = last_settled(connection.django, self._database.table, self._settle)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """The end of the next micro-batch: never beyond what is settled, for a smaller id may still
        come below it."""
        table, most = (
            self._database.table,
            limit.max_rows if isinstance(limit, ReadMaxRows) else None,
        )
        with connected(self._database, plain=True) as connection:
            top = self._target
            if top is None:
                top = last_settled(connection.django, table, self._settle)
            end = _end_of(connection.django, table, (start["id"], top), most)
        return {"id": start["id"] if end is None else end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Ranges of ids, with about as many rows each."""
        lo, hi = start["id"], end["id"]
        parts = ranges.parts_of((lo, hi), self._parts)
        return [IdRange(*ids) for ids in ranges.edges(self._database, (lo, hi), parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one range."""
        assert isinstance(partition, IdRange)
        yield from rows.read_rows(self._database, self._schema, (partition.lo, partition.hi))


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(
            f"The option `settle` is {text!r}, which is no number of seconds."
        ) from None


def _end_of(connection: Any, table: str, ids: tuple[int, int], most: int | None) -> int | None:
    """The highest id of the first so many rows with lo < id <= hi; None where there are none."""
    limit = "" if most is None else f"LIMIT {int(most)}"
    page = (
        f"SELECT id FROM {connection.ops.quote_name(table)} WHERE id > %s AND id <= %s ORDER BY id "
        f"{limit}"
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT max(id) FROM ({page}) AS page", ids)
        (end,) = cursor.fetchone()
    return None if end is None else int(end)
