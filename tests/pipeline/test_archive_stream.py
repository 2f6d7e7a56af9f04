"""The source of the stream: offsets, what is settled, and ranges."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from django.db import connection, connections, transaction
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from django_delayq.core.exceptions import ConfigurationError, DatabaseUnavailable
from django_delayq.models import ArchivedMessage
from django_delayq.pipeline import schemas
from django_delayq.pipeline.sources.archive_source import ArchiveStreamReader
from tests.pipeline.rows import make_rows


@pytest.fixture
def reader(parameters: Any) -> Callable[..., ArchiveStreamReader]:
    """Spark's planner has one of these: here it is asked without Spark."""

    def make(**options: str) -> ArchiveStreamReader:
        database = msgspec.json.encode(parameters().database).decode()
        schema = from_arrow_schema(schemas.chosen(schemas.ARCHIVE, ["id", "topic"]))
        return ArchiveStreamReader(schema, {"database": database, "settle": "0", **options})

    return make


@pytest.mark.databases
def test_offsets_follow_the_rows_and_not_the_numbers(
    reader: Callable[..., ArchiveStreamReader],
) -> None:
    first = make_rows(4)
    ArchivedMessage.objects.filter(pk=first[1]).delete()
    one = reader(after="0", batch="2")
    assert (one.initialOffset(), one.getDefaultReadLimit()) == ({"id": 0}, ReadMaxRows(2))
    assert one.latestOffset({"id": 0}, ReadMaxRows(2)) == {"id": first[2]}
    assert one.latestOffset({"id": first[2]}, ReadMaxRows(2)) == {"id": first[3]}
    assert one.latestOffset({"id": 0}, ReadAllAvailable()) == {"id": first[3]}
    assert one.latestOffset({"id": first[3]}, ReadAllAvailable()) == {"id": first[3]}


@pytest.mark.databases
def test_available_now_is_what_was_settled_then(reader: Callable[..., ArchiveStreamReader]) -> None:
    old = make_rows(2)
    one = reader()
    one.prepareForTriggerAvailableNow()
    make_rows(1)
    assert one.latestOffset({"id": 0}, ReadMaxRows(100)) == {"id": old[-1]}
    assert reader().latestOffset({"id": 0}, ReadMaxRows(100)) == {"id": old[-1] + 1}


@pytest.mark.databases
def test_a_batch_is_read_by_its_ranges_with_the_columns_that_are_asked_for(
    reader: Callable[..., ArchiveStreamReader],
) -> None:
    ids = make_rows(3)
    one = reader()
    assert not one.partitions({"id": ids[1]}, {"id": ids[1]})
    (part,) = one.partitions({"id": ids[0]}, {"id": ids[2]})
    (batch,) = one.read(part)
    assert batch.to_pylist() == [{"id": number, "topic": "orders"} for number in ids[1:]]


@pytest.mark.databases
def test_a_row_below_an_open_transaction_waits_for_it(
    reader: Callable[..., ArchiveStreamReader],
) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    old = make_rows(1)
    one = reader()
    time.sleep(
        1.1 if connection.vendor == "mysql" else 0.05
    )  # MariaDB knows the second in which one began
    with _another_writer() as commit:
        late = make_rows(1)
        assert one.latestOffset({"id": 0}, ReadAllAvailable()) == {"id": old[-1]}
        commit()
    assert one.latestOffset({"id": 0}, ReadAllAvailable()) == {"id": late[-1]}
    assert ArchivedMessage.objects.filter(pk__gt=old[-1], pk__lt=late[-1]).count() == 1


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
@pytest.mark.parametrize("name", ["after", "batch", "settle"])
def test_options_that_mean_nothing_are_refused(
    reader: Callable[..., ArchiveStreamReader], name: str, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}` is '{text}', which is no"):
        reader(**{name: text})


def test_a_wrong_path_makes_no_database(parameters: Any, tmp_path: Path) -> None:
    database = msgspec.structs.replace(
        parameters().database,
        engine="django.db.backends.sqlite3",
        name=str(tmp_path / "no.sqlite3"),
        options={},
    )
    options = {"database": msgspec.json.encode(database).decode(), "settle": "0"}
    reader = ArchiveStreamReader(from_arrow_schema(schemas.ARCHIVE), options)
    with pytest.raises(DatabaseUnavailable, match=r"no\.sqlite3"):
        reader.latestOffset({"id": 0}, ReadMaxRows(2))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def _another_writer() -> Iterator[Callable[[], None]]:
    """Has inserted a row that nobody sees before it is told to commit."""
    inserted, go = threading.Event(), threading.Event()

    def write() -> None:
        try:
            with transaction.atomic():
                make_rows(1)
                inserted.set()
                go.wait(60)
        finally:
            connections.close_all()

    writer = threading.Thread(target=write)

    def commit() -> None:
        go.set()
        writer.join()

    writer.start()
    inserted.wait(60)
    try:
        yield commit
    finally:
        commit()
