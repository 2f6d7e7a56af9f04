"""The Parquet files of a lake, by Arrow: written and compared, and read. It runs on executors,
which need pyarrow and no other package for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from operator import attrgetter
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from ...core.chunks import chunked_by_weight
from ...core.exceptions import ConfigurationError
from .. import schemas
from ..job_errors import LakeError
from ..params import Storage

#: Bytes of rows that are sorted and written at a time: a row group.
CHUNK = 64 * 1024 * 1024
#: Rows that are read at a time.
ROWS = 20_000
#: Columns in which hardly a value comes twice: a dictionary would save nothing.
_UNIQUE = {
    "id",
    "message_id",
    "body",
    "enqueued_at",
    "due_at",
    "started_at",
    "finished_at",
    "lateness_ms",
    "run_ms",
}
_REPEATED = [name for name in schemas.ARCHIVE.names if name not in _UNIQUE]

Range = tuple[int, int]
"""lo < id <= hi."""


class LakeFile(NamedTuple):
    """One Parquet file, as the table's log knows it."""

    path: str
    """Relative to the table: dt=2026-11-20/part-0.parquet."""
    dt: date
    """UTC date on which its messages finished."""
    bytes: int
    rows: int
    lowest: int
    """Its smallest id."""
    highest: int
    oldest: int
    """When its first row finished, in microseconds since 1970."""
    newest: int


#: How tasks report files.
FILES = pa.schema(
    {"path": pa.string(), "dt": pa.date32(), **dict.fromkeys(LakeFile._fields[2:], pa.int64())}
)


class Store:
    """The file system of a lake. Not to be pickled: it holds the secrets."""

    def __init__(self, storage: Storage) -> None:
        self.is_local = storage.is_local
        self.fs, self.root = _opened(storage)

    def place(self, path: str) -> str:
        """A path of the lake as the file system has it."""
        return f"{self.root}/{path}"

    def sync(self, path: str) -> None:
        """After a power failure, the log must not name a file that is lost. An object store keeps
        what it has acknowledged."""
        if self.is_local:
            file = self.place(path)
            for part in (file, os.path.dirname(file), self.root):
                sync(part)


def sync(path: str) -> None:
    """Write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _opened(storage: Storage) -> tuple[fs.FileSystem, str]:
    """Arrow's file system, by the options that readers of Delta know, and the root in it."""
    if storage.is_local:
        return fs.LocalFileSystem(), os.path.abspath(storage.uri)
    given = {name.upper(): value for name, value in storage.resolved().items()}
    scheme, _, root = storage.uri.rstrip("/").partition("://")

    def first(*names: str) -> str | None:
        return next((given[name] for name in names if name in given), None)

    if scheme in ("s3", "s3a"):
        endpoint = first("AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        protocol, _, host = (endpoint or "").rpartition("://")
        return fs.S3FileSystem(
            access_key=first("AWS_ACCESS_KEY_ID"),
            secret_key=first("AWS_SECRET_ACCESS_KEY"),
            session_token=first("AWS_SESSION_TOKEN"),
            region=first("AWS_REGION", "AWS_DEFAULT_REGION"),
            endpoint_override=host or None,
            scheme=protocol or "https",
        ), root
    if scheme in ("gs", "gcs"):
        # Arrow reads the file of a service account only by this variable.
        if path := first("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"):
            os.environ.setdefault("GOOGLE_APPLICATION_CREDENTIALS", path)
        return fs.GcsFileSystem(), root
    if scheme in ("abfs", "abfss", "az", "azure"):
        container, at, rest = root.partition("@")  # container@account.dfs.core.windows.net/path
        if at:
            host, _, path = rest.partition("/")
            account: str | None = host.partition(".")[0]
            root = f"{container}/{path}".rstrip("/")
        else:
            account = first("AZURE_STORAGE_ACCOUNT_NAME", "ACCOUNT_NAME")
        return fs.AzureFileSystem(
            account_name=account,
            account_key=first("AZURE_STORAGE_ACCOUNT_KEY", "ACCOUNT_KEY"),
            sas_token=first("AZURE_STORAGE_SAS_KEY", "SAS_TOKEN"),
            tenant_id=first("AZURE_STORAGE_TENANT_ID", "TENANT_ID"),
            client_id=first("AZURE_STORAGE_CLIENT_ID", "CLIENT_ID"),
            client_secret=first("AZURE_STORAGE_CLIENT_SECRET", "CLIENT_SECRET"),
        ), root
    raise ConfigurationError(
        f"A lake cannot be at {scheme}://: use s3://, gs://, abfss:// or a path."
    )


# Writing


def new_name(ids: Range) -> str:
    """How the names of the files of an attempt begin: no other attempt has it."""
    return f"{ids[0]}-{ids[1]}-{os.urandom(6).hex()}"


def write_rows(store: Store, batches: Iterable[pa.RecordBatch], name: str) -> Iterator[LakeFile]:
    """Write rows of the archive as files, one or several for each UTC date on which they finished.
    Each is compared with its rows before it is reported. `name` begins the names of the files, and
    no other attempt has it.

    A file is closed at once, because a first export of several years has a thousand dates.
    """
    for number, chunk in enumerate(row_groups(batches)):
        # Similar rows lie together, which saves a quarter of the bytes.
        rows = chunk.append_column("dt", chunk["finished_at"].cast(pa.date32())).sort_by(
            [(column, "ascending") for column in ("dt", "topic", "finished_at")]
        )
        begin = 0
        for found in rows["dt"].value_counts().to_pylist():
            part = rows.slice(begin, found["counts"]).drop_columns("dt")
            begin += found["counts"]
            path = f"dt={found['values']}/{name}-{number}.parquet"
            yield write_file(store, path, found["values"], lambda part=part: [part])  # type: ignore[misc]


def row_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows, as many together as a row group has."""
    return map(pa.Table.from_batches, chunked_by_weight(batches, attrgetter("nbytes"), CHUNK))


def write_file(
    store: Store, path: str, dt: date, chunks: Callable[[], Iterable[pa.Table]]
) -> LakeFile:
    """Write one file, each chunk as a row group, and compare what is in it with the chunks, which
    are made a second time. Raises LakeError when they differ."""
    place = store.place(path)
    if store.is_local:
        store.fs.create_dir(os.path.dirname(place), recursive=True)
    with parquet.ParquetWriter(
        place,
        schemas.ARCHIVE,
        filesystem=store.fs,
        store_schema=False,
        compression="zstd",
        compression_level=3,
        use_dictionary=_REPEATED,
        write_page_checksum=True,
    ) as writer:
        for chunk in chunks():
            writer.write_table(chunk, row_group_size=max(1, chunk.num_rows))
    edges, rows = [], 0
    with parquet.ParquetFile(
        place, filesystem=store.fs, page_checksum_verification=True
    ) as written:
        groups = range(written.num_row_groups)
        number = -1
        for number, chunk in enumerate(chunks()):
            if number not in groups or not _same(written.read_row_group(number), chunk):
                raise LakeError(f"{place} does not hold the rows that were written to it.")
            edges.append((*_edges(chunk["id"]), *_edges(chunk["finished_at"])))
            rows += chunk.num_rows
        if number + 1 != len(groups) or rows != written.metadata.num_rows:
            raise LakeError(f"{place} has other rows than were written to it.")
    store.sync(path)
    lowest, highest, oldest, newest = zip(*edges, strict=True)
    size = store.fs.get_file_info(place).size
    return LakeFile(path, dt, size, rows, min(lowest), max(highest), min(oldest), max(newest))


def rewrite(
    store: Store, file: LakeFile, path: str, change: Callable[[pa.RecordBatch], pa.RecordBatch]
) -> LakeFile:
    """Write a file with its rows changed, or without some of them. Raises LakeError."""

    def rows() -> Iterator[pa.Table]:
        changed = map(change, read_file(store, file))
        return (pa.Table.from_batches([batch]) for batch in changed if batch.num_rows)

    return write_file(store, path, file.dt, rows)


def _same(written: pa.Table, rows: pa.Table) -> bool:
    written = written.cast(rows.schema)
    # Not a number is unlike itself.
    return bool(written.equals(rows) or bits(written).equals(bits(rows)))


def bits(rows: pa.Table) -> pa.Table:
    """The rows with their floating-point columns as whole numbers of the same bits, which can be
    compared: not a number is unlike itself."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_floating(field.type):
            bits = [chunk.view(pa.int64()) for chunk in rows.column(at).chunks]
            rows = rows.set_column(at, field.name, pa.chunked_array(bits, pa.int64()))
    return rows


def _edges(column: pa.ChunkedArray) -> tuple[int, int]:
    edges = pc.min_max(column.cast(pa.int64()))
    return edges["min"].as_py(), edges["max"].as_py()


# Reading


@contextmanager
def open_file(store: Store, file: LakeFile, **options: Any) -> Iterator[parquet.ParquetFile]:
    """A file for reading. Raises LakeError unless it can be read, now and within the context, and
    has as many rows as the log says."""
    place = store.place(file.path)
    try:
        with parquet.ParquetFile(
            place,
            filesystem=store.fs,
            page_checksum_verification=True,
            pre_buffer=not store.is_local,
            **options,
        ) as source:
            if source.metadata.num_rows != file.rows:
                raise LakeError(
                    f"{place} has {source.metadata.num_rows:,} rows, the log of the lake says "
                    f"{file.rows:,}."
                )
            yield source
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{place} cannot be read: {error}") from None


def read_file(
    store: Store, file: LakeFile, columns: Sequence[str] | None = None, ids: Range | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, those with these ids if they are given. Raises LakeError."""
    schema = schemas.chosen(schemas.ARCHIVE, columns or schemas.ARCHIVE.names)
    names = schema.names if ids is None or "id" in schema.names else [*schema.names, "id"]
    with open_file(store, file) as source:
        every = range(source.num_row_groups)
        groups = [number for number in every if _group_may_have(source, number, ids)]
        for batch in source.iter_batches(ROWS, row_groups=groups, columns=names, use_threads=False):
            if ids is not None:
                above, upto = pc.greater(batch["id"], ids[0]), pc.less_equal(batch["id"], ids[1])
                batch = batch.filter(pc.and_(above, upto))  # noqa: PLW2901
            if batch.num_rows:
                yield batch.select(schema.names).cast(schema)


def _group_may_have(source: parquet.ParquetFile, number: int, ids: Range | None) -> bool:
    column = source.metadata.row_group(number).column(0)
    if ids is None or column.path_in_schema != "id" or not column.is_stats_set:
        return True
    return bool(column.statistics.min <= ids[1] and column.statistics.max > ids[0])
