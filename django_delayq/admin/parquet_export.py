"""Rows of the archive as Parquet, for tools of analysis. Its columns have the types of the lake's.
Needs the extra `arrow`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Model

from ..core.times import utc
from .downloads import FileFormat

#: A row group ends at so many rows, or at so many characters of text. One at a time is in memory.
GROUP_ROWS, GROUP_TEXT = 20_000, 8 * 1024 * 1024


def parquet_parts(rows: Iterable[Model], columns: Sequence[str]) -> Iterator[bytes]:
    """The file in parts. One that was broken off lacks its footer: nobody takes it for whole."""
    # Not above: few projects have pyarrow, and no module outside the pipeline loads it.
    import pyarrow as pa
    from pyarrow import parquet

    from ..pipeline.schemas import LETTERS, chosen

    sink = _Sink()
    schema = chosen(pa.schema([*LETTERS, ("replayed_by", pa.string())]), columns)
    with parquet.ParquetWriter(pa.PythonFile(sink, "w"), schema) as writer:
        yield sink.taken()
        for group in _groups(rows, columns):
            writer.write_batch(pa.record_batch(group, schema))
            yield sink.taken()
    yield sink.taken()


class _Sink:
    """What the writer has written since somebody took it."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(self._parts[-1])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def taken(self) -> bytes:
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole


def _groups(rows: Iterable[Model], columns: Sequence[str]) -> Iterator[list[list[Any]]]:
    """The columns of each row group."""
    group: list[list[Any]] = [[] for _ in columns]
    text = 0
    for row in rows:
        for values, name in zip(group, columns, strict=True):
            values.append(value := _cell(getattr(row, name)))
            text += len(value) if isinstance(value, str) else 0
        if len(group[0]) >= GROUP_ROWS or text >= GROUP_TEXT:
            yield group
            group, text = [[] for _ in columns], 0
    if group[0]:
        yield group


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc(value)
    return value.hex if isinstance(value, UUID) else value


PARQUET = FileFormat(
    ending="parquet", content_type="application/vnd.apache.parquet", write=parquet_parts
)
