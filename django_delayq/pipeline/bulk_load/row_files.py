"""Reads the rows of a file (Parquet, CSV, JSON lines) without Spark, batch by batch, with the line
of each."""

from __future__ import annotations

import io
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from ...core.chunks import chunked, chunked_by_weight
from .. import schemas
from ..job_errors import Refused
from . import json_values
from .row_messages import CORRUPT

#: Formats by the endings of names.
ENDINGS = {
    ".parquet": "parquet", ".csv": "csv", ".jsonl": "json", ".ndjson": "json", ".json": "json",
}  # fmt: skip
#: Most rows that are read at a time, and about how many bytes of them: a column of Arrow takes less
#: than 2 GiB.
BATCH, BYTES = 10_000, 64 * 1024 * 1024
#: Most bytes of a row of CSV: four times the largest body.
MOST_CSV_ROW = 4 * 1024 * 1024
#: Each field of the row that _WithEnd adds.
_END = b"\0the end\0"


class Lines(NamedTuple):
    """Some rows of a file."""

    rows: pa.RecordBatch
    lines: Sequence[int]
    """Of a text: the line where the row begins. Of Parquet: the number of the row. From 1."""


class RowFile(Protocol):
    """A file of rows. It can be read several times."""

    schema: pa.Schema
    size: int
    """How many rows it has; 0 when that is not known before."""

    def batches(self) -> Iterator[Lines]:
        """All rows, in their order."""


def open_rows(path: str, kind: str) -> RowFile:
    """The file. Raises Refused when it cannot be read as this format."""
    kinds: dict[str, Callable[[str], RowFile]] = {
        "parquet": ParquetRows, "csv": CsvRows, "json": JsonRows,
    }  # fmt: skip
    try:
        return kinds[kind](path)
    except (OSError, pa.ArrowException, UnicodeError) as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: Exception) -> Refused:
    """What to raise for an error of a reader."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    if "straddling object" in why:
        why = f"a row has more than {MOST_CSV_ROW:,} bytes, or a quote is not closed"
    return Refused(f"The source {path!r} cannot be read: {why.rstrip('.')}.")


class ParquetRows:
    """Parquet: the columns have the types of the file. INT96, in which Spark writes its times, is
    in UTC. What pandas writes as a category has the type of its values, as it has for Spark."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._open() as file:
            self.schema, self.size = file.schema_arrow, file.metadata.num_rows
            columns = (file.schema.column(at) for at in range(len(file.schema)))
            instants = {column.path for column in columns if column.physical_type == "INT96"}
        for at, field in enumerate(self.schema):
            if field.name in instants:
                self.schema = self.schema.set(at, field.with_type(schemas.TIME))
            elif pa.types.is_dictionary(field.type):
                self.schema = self.schema.set(at, field.with_type(field.type.value_type))

    def batches(self) -> Iterator[Lines]:
        first = 1
        with self._open() as file:
            for batch in file.iter_batches(BATCH):
                for rows in _halved(batch.cast(self.schema)):
                    yield Lines(rows, range(first, first + len(rows)))
                    first += len(rows)

    def _open(self) -> Any:
        return parquet.ParquetFile(self._path, coerce_int96_timestamp_unit="us")


def _halved(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in parts of BYTES at the most; a larger row is in a part of its own."""
    if len(rows) < 2 or rows.nbytes <= BYTES:
        yield rows
    else:
        half = len(rows) // 2
        yield from _halved(rows.slice(0, half))
        yield from _halved(rows.slice(half))


class CsvRows:
    """CSV: all columns are text, for what looks like a number may be a code with zeros in front.
    The first line names them. Nothing between two commas is null, and "" is the empty text."""

    size = 0

    def __init__(self, path: str) -> None:
        self._path = path
        self._names = csv_names(path, path)
        self.schema = csv_schema(self._names)

    def batches(self) -> Iterator[Lines]:
        """See csv_rows()."""
        with pa.input_stream(self._path) as file:
            yield from csv_rows(file, self._path, self._names)


def csv_schema(names: Sequence[str]) -> pa.Schema:
    """Of the rows of a CSV file."""
    return pa.schema([(name, pa.string()) for name in (*names, CORRUPT)])


def csv_names(file: Any, path: str) -> list[str]:
    """The columns of a CSV file: its path, or what has its bytes. Raises Refused when the first
    line does not name them."""
    names: list[str] = _open_csv(file, (), lambda row: "skip").schema.names
    if len({*names, CORRUPT, ""}) < len(names) + 2:
        raise Refused(
            f"The first line of {path!r} has to name the columns, each by another name: "
            f"{', '.join(map(repr, names))}."
        )
    return names


def csv_rows(file: Any, path: str, names: Sequence[str]) -> Iterator[Lines]:
    """The rows of a CSV file, which is open. A row with more or fewer fields than the first line is
    CORRUPT. A blank line, and one of nothing but commas, is no row. In the end it raises Refused
    when a quote is not closed: Arrow takes all that follows for a text."""
    broken: dict[int, str] = {}

    def skip(row: Any) -> str:
        broken[row.number] = row.text
        return "skip"

    # Buffered, for blocks that are full: a row may be in two of them, and in no more.
    ended = io.BufferedReader(_WithEnd(file, len(names)), MOST_CSV_ROW)
    reader = _open_csv(ended, names, skip)
    _check_names(reader.schema.names, names, path)
    number = 2  # of the next row; the names are the first
    line = 2 + sum(name.count("\n") for name in names)
    last, end = line, (_END.decode(),) * len(names)
    values: tuple[Any, ...] = ()
    for batch in reader:
        rows: list[tuple[int, tuple[str | None, ...]]] = []
        for values in zip(*(_texts(column) for column in batch.columns), strict=True):
            while (text := broken.pop(number, None)) is not None:
                rows.append((line, (*(None,) * len(values), text)))
                number, line = number + 1, line + 1 + text.count("\n")
            if values == end:
                break
            last = line
            if any(value is not None for value in values):  # Arrow tells no blank line from commas
                rows.append((line, _with_corrupt(values)))
            number += 1
            line += 1 + sum(value.count("\n") for value in values if isinstance(value, str))
        yield from _csv_pages(rows, names)
    if values != end:
        at = line if broken else last
        why = f"a quote is not closed, in line {at:,} or after it"
        raise Refused(f"The source {path!r} cannot be read: {why}.")


def _check_names(found: Sequence[str], names: Sequence[str], path: str) -> None:
    if list(found) != list(names):
        raise Refused(
            f"A file of {path!r} has the columns {', '.join(found)}, and another one has "
            f"{', '.join(names)}: give files with the same columns in the same order."
        )


class _WithEnd(io.RawIOBase):
    """A CSV file with a last row of our own, which is a row unless a quote is still open."""

    def __init__(self, file: Any, fields: int) -> None:
        super().__init__()
        self._file, self._end = file, b"\n" + b",".join([_END] * fields) + b"\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        found = self._file.read(len(buffer))
        if not found:
            found, self._end = self._end[: len(buffer)], self._end[len(buffer) :]
        buffer[: len(found)] = found
        return len(found)


def _with_corrupt(values: Sequence[Any]) -> tuple[str | None, ...]:
    """A row whose fields are texts, or bytes that are not UTF-8."""
    wrong = next((value for value in values if isinstance(value, bytes)), None)
    return (*values, None) if wrong is None else (*(None,) * len(values), ascii(wrong))


def _csv_pages(
    rows: Sequence[tuple[int, tuple[str | None, ...]]], names: Sequence[str]
) -> Iterator[Lines]:
    for page in chunked(rows, BATCH):
        columns = zip(*(values for _, values in page), strict=True)
        arrays = [pa.array(column, pa.string()) for column in columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=csv_schema(names))
        yield Lines(batch, [line for line, _ in page])


def _open_csv(file: Any, names: Sequence[str], skip: Callable[[Any], Any]) -> Any:
    return arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(use_threads=False, block_size=MOST_CSV_ROW),
        parse_options=arrow_csv.ParseOptions(
            newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=skip
        ),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        ),
    )


def _texts(column: pa.Array) -> list[Any]:
    """Texts; bytes for what is not UTF-8."""
    texts, wrong = json_values.values_of(column.cast(pa.string(), safe=False))
    for at in wrong:
        texts[at] = column[at].as_py()
    return texts


class JsonRows:
    """One object per line. A column for each field that any of them has: its JSON, null where it is
    missing."""

    size = 0

    def __init__(self, path: str) -> None:
        self._path = path
        names: dict[str, None] = {}
        for batch in self._lines():
            for fields in fields_of(batch.rows.column(0)).to_pylist():
                names |= dict.fromkeys(name for name, _ in fields or ())
        if CORRUPT in names:
            raise Refused(f"The lines of {path!r} have a field {CORRUPT!r}: rename it.")
        self._names = sorted(names)
        self.schema = pa.schema([(name, pa.string()) for name in (*self._names, CORRUPT)])

    def batches(self) -> Iterator[Lines]:
        """A line that is no object is CORRUPT."""
        for batch in self._lines():
            raw = batch.rows.column(0)
            objects = [
                None if fields is None else dict(fields) for fields in fields_of(raw).to_pylist()
            ]
            columns: list[list[str | None]] = [
                [None if fields is None else fields.get(name) for fields in objects]
                for name in self._names
            ]
            texts = zip(raw.to_pylist(), objects, strict=True)
            columns.append(
                [
                    text.decode(errors="backslashreplace") if fields is None else None
                    for text, fields in texts
                ]
            )
            arrays = [pa.array(column, pa.string()) for column in columns]
            yield Lines(pa.RecordBatch.from_arrays(arrays, schema=self.schema), batch.lines)

    def _lines(self) -> Iterator[Lines]:
        """The lines that are not blank, as bytes. A mark of UTF-8 at the beginning of the file is
        skipped, as Spark does it."""
        with Path(self._path).open("rb") as file:
            if file.read(len(BOM_UTF8)) != BOM_UTF8:
                file.seek(0)
            numbered = ((at, line) for at, line in enumerate(file, 1) if line.strip())
            least = BYTES // BATCH  # so that there are no more than BATCH
            for page in chunked_by_weight(numbered, lambda one: max(len(one[1]), least), BYTES):
                lines, texts = zip(*page, strict=True)
                array = pa.array([text.rstrip(b"\r\n") for text in texts], pa.binary())
                yield Lines(pa.record_batch([array], names=["line"]), lines)


def fields_of(lines: pa.Array) -> pa.Array:
    """The fields of each line with their JSON; null for a line that is no object."""
    objects: list[list[tuple[str, str]] | None] = []
    for line in lines.to_pylist():
        try:
            msgspec.json.decode(line)  # all of it, for what is taken raw is hardly looked at
            found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            objects.append([(name, bytes(value).decode()) for name, value in found.items()])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            objects.append(None)
    return pa.array(objects, pa.map_(pa.string(), pa.string()))
