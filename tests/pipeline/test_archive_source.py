"""spark.read.format("delayq_archive"): every row once, as it is, from each kind of database."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timezone
from itertools import pairwise
from pathlib import Path
from traceback import format_exception
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from django.db import connection
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from django_delayq.core.exceptions import ConfigurationError, DatabaseUnavailable
from django_delayq.models import ArchivedMessage
from django_delayq.pipeline import schemas
from django_delayq.pipeline.params import Database, Params, Secret
from django_delayq.pipeline.source_options import encoded
from django_delayq.pipeline.sources import adbc, ranges, table_reader
from django_delayq.pipeline.sources.archive_source import RangeReader, read_archive
from django_delayq.pipeline.sources.databases import address_of, connected, select_rows
from django_delayq.pipeline.sources.query_source import QuerySource
from tests.pipeline.rows import INSTANTS, ODD, make_odd_rows, make_rows

pytestmark = pytest.mark.databases

ALL = (0, 2**62)
#: Of make_odd_rows() without the ids, which are random: the same from every database and by every
#: reader.
SIGNATURE = "35540298513542081254"
COLUMNS = [name for name in schemas.ARCHIVE.names if name not in ("id", "message_id")]


@pytest.fixture
def database(parameters: Callable[..., Params]) -> Database:
    """The database of this run."""
    return parameters().database


def as_django_reads() -> list[tuple[Any, ...]]:
    """The archive, as the lake should hold it."""
    found = ArchivedMessage.objects.order_by("id").values(*schemas.ARCHIVE.names)
    return [tuple({**row, "message_id": row["message_id"].hex}.values()) for row in found]


def load(spark: Any, database: Database, **options: str) -> Any:
    """As a user reads it."""
    reader = spark.read.format("delayq_archive").option("database", encoded(database))
    return reader.options(**options).load()


def in_one(
    database: Database, names: Sequence[str] = schemas.ARCHIVE.names, **told: Any
) -> pa.Table:
    """The whole table, without Spark."""
    schema = schemas.chosen(schemas.ARCHIVE, names)
    return pa.Table.from_batches(table_reader.read_rows(database, schema, ALL, **told), schema)


def signature(frame: Any) -> tuple[Any, ...]:
    total = F.sum(F.xxhash64(*COLUMNS).cast("decimal(38,0)")).cast("string")
    times = [f(F.col("finished_at").cast("double")) for f in (F.min, F.max)]
    return tuple(frame.agg(F.count(F.lit(1)), total, *times).first())


# Contents


@pytest.mark.long
@pytest.mark.parametrize("reader", table_reader.READERS)
def test_every_odd_content_arrives_as_it_is(reader: str, spark: Any, database: Database) -> None:
    make_odd_rows()
    frame = load(spark, database, lo="0", hi=str(2**62), reader=reader)
    assertSchemaEqual(frame.schema, from_arrow_schema(schemas.ARCHIVE))
    assertDataFrameEqual(
        frame, spark.createDataFrame(as_django_reads(), frame.schema), rtol=0, atol=0
    )
    assert signature(frame) == (
        2 * len(ODD),
        SIGNATURE,
        INSTANTS[4].timestamp(),
        INSTANTS[5].timestamp(),
    )


@pytest.mark.parametrize("reader", table_reader.READERS)
@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York"])
def test_without_use_tz_the_instants_are_the_same(
    reader: str, zone: str, database: Database, settings: Any
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    when = [
        at
        for at in INSTANTS
        if at.replace(tzinfo=ZoneInfo(zone)).utcoffset()
        == at.replace(tzinfo=ZoneInfo(zone), fold=1).utcoffset()
    ]
    make_rows(len(when), finished_at=lambda n: when[n])
    database = msgspec.structs.replace(database, zone=zone)
    found = in_one(database, ["finished_at", "started_at"], reader=reader)
    assert [at.astimezone(timezone.utc) for at in found["finished_at"].to_pylist()] == when


@pytest.mark.parametrize("reader", table_reader.READERS)
@pytest.mark.parametrize(
    "name", ["max_attempts", "started_at", "reason", "message_id", "lateness_ms"]
)
def test_a_column_alone_keeps_its_nulls(reader: str, name: str, database: Database) -> None:
    make_odd_rows()
    at = schemas.ARCHIVE.names.index(name)
    assert in_one(database, [name], reader=reader)[name].to_pylist() == [
        row[at] for row in as_django_reads()
    ]


def test_a_column_may_be_empty_for_many_rows_and_then_hold_something(database: Database) -> None:
    """SQLite has no types: a driver that learns them from the first rows learns nothing here."""
    nothing = 1_700  # in the middle of the third statement, which begins with more nulls than a driver looks at
    names = ["started_at", "lateness_ms", "max_attempts", "replay_of"]
    values = {"started_at": INSTANTS[4], "lateness_ms": 2.5, "max_attempts": 3, "replay_of": 7}
    ids = make_rows(
        nothing + 2,
        **{name: lambda n, name=name: values[name] if n >= nothing else None for name in names},
    )
    found = in_one(database, names).to_pylist()
    assert len(ids) == len(found)
    assert found[0] == dict.fromkeys(names)
    assert found[nothing:] == [values, values]


def test_without_adbcs_drivers_the_same_is_read_by_the_cursor(
    database: Database, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    monkeypatch.setitem(sys.modules, "adbc_driver_sqlite.dbapi", None)
    make_odd_rows()
    assert adbc.driver(connection.vendor) is None
    assert [tuple(row.values()) for row in in_one(database).to_pylist()] == as_django_reads()


# Ranges


def test_the_rows_are_those_above_lo_up_to_hi(spark: Any, database: Database) -> None:
    ids = make_rows(10)
    frame = read_archive(spark, database, (ids[2], ids[6]), ["id", "state"], parts=3)
    assert frame.columns == ["id", "state"]
    make_rows(5)
    for _ in range(2):  # two looks
        assert sorted(row.id for row in frame.collect()) == ids[3:7]


def test_an_empty_range_gives_no_rows_but_all_columns(spark: Any, database: Database) -> None:
    ids = make_rows(2)
    for nothing in ((0, 0), (ids[1], ids[1] + 100)):
        frame = read_archive(spark, database, nothing)
        assert frame.columns == schemas.ARCHIVE.names
        assert frame.count() == 0


def test_without_a_range_it_is_all_that_there_is_when_it_is_planned(
    spark: Any, database: Database
) -> None:
    make_rows(3)
    assert load(spark, database).count() == 3
    make_rows(2)
    assert load(spark, database).count() == 5
    last = ArchivedMessage.objects.latest("id").id
    assert [row.id for row in load(spark, database, lo=str(last - 1)).select("id").collect()] == [
        last
    ]


def test_parts_are_read_side_by_side_and_hold_each_row_once(spark: Any, database: Database) -> None:
    ids = make_rows(12_000)
    frame = read_archive(spark, database, (0, ids[-1]), ["id"], parts=4)
    assert frame.select(F.spark_partition_id()).distinct().count() == 4
    assert sorted(row.id for row in frame.collect()) == ids


def rows_in(parts: Sequence[ranges.Range]) -> list[int]:
    return [ArchivedMessage.objects.filter(id__gt=lo, id__lte=hi).count() for lo, hi in parts]


def unbroken(parts: Sequence[ranges.Range], lo: int, hi: int) -> bool:
    return (parts[0][0], parts[-1][1]) == (lo, hi) and all(
        one[1] == other[0] for one, other in pairwise(parts)
    )


def spread(ids: Sequence[int], by: int = 0, times: int = 1) -> None:
    """Move them: as if a sequence had jumped, or most of what was between them were pruned."""
    table = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    with connection.cursor() as cursor:
        moved = f"UPDATE {table} SET id = %s + (id - %s) * %s WHERE id BETWEEN %s AND %s"
        cursor.execute(moved, [ids[0] + by, ids[0], times, ids[0], ids[-1]])


def test_a_gap_of_a_billion_ids_leaves_the_parts_even(spark: Any, database: Database) -> None:
    ids = make_rows(8_000)
    spread(ids[5_000:], by=1_000_000_000)
    end = ids[-1] + 1_000_000_000
    parts = ranges.edges(database, (0, end), 8)
    assert unbroken(parts, 0, end)
    assert max(rows_in(parts)) < 1_250
    assert read_archive(spark, database, (0, end), ["id"]).count() == 8_000


def test_a_pruned_beginning_with_some_dead_letters_left_leaves_the_parts_even(
    database: Database,
) -> None:
    ids = make_rows(9_000)
    spread(ids[200:], by=5_000_000)
    spread(ids[:200], times=10_000)
    end = ids[-1] + 5_000_000
    parts = ranges.edges(database, (0, end), 4)
    assert unbroken(parts, 0, end)
    assert max(rows_in(parts)) < 9_000 / 4 * 1.2


def test_few_rows_are_not_divided_and_no_range_is_empty_of_ids(database: Database) -> None:
    ids = make_rows(900)
    assert ranges.edges(database, (0, ids[-1]), 8) == [(0, ids[-1])]
    assert ranges.edges(database, (5, 5), 8) == []
    assert ranges.edges(database, (ids[-1], ids[-1] + 10), 8) == [(ids[-1], ids[-1] + 10)]


# Connections


MADE_OF = {
    "sqlite": "nowhere.spatialite",
    "postgresql": "nowhere.postgis",
    "mysql": "nowhere.backends.mysql",
}


def test_an_engine_that_is_not_here_is_read_as_what_it_is_made_of(database: Database) -> None:
    make_rows(2)
    other = msgspec.structs.replace(database, engine=MADE_OF[connection.vendor])
    assert in_one(other, ["topic"])["topic"].to_pylist() == ["orders", "orders"]


def test_with_such_an_engine_a_query_cannot_write_either(database: Database) -> None:
    make_rows(2)
    other = msgspec.structs.replace(database, engine=MADE_OF[connection.vendor])
    table = connection.ops.quote_name(database.table)
    gone = {
        "sqlite": f"WITH x AS (SELECT 1) DELETE FROM {table} RETURNING id",
        "postgresql": f"WITH x AS (DELETE FROM {table} RETURNING id) SELECT id FROM x",
        "mysql": f"WITH x AS (SELECT 1 AS id) DELETE {table} FROM {table} JOIN x USING (id)",
    }
    source = QuerySource({"database": encoded(other), "query": gone[connection.vendor]})
    # MariaDB knows no WITH that deletes.
    with pytest.raises(Exception, match=r"(?i)read.?only|syntax|data-modifying"):
        source.schema()
    assert ArchivedMessage.objects.count() == 2


def test_an_unknown_engine_is_refused(database: Database) -> None:
    other = msgspec.structs.replace(database, engine="nowhere.backends.crystal")
    with pytest.raises(ConfigurationError, match=r"nowhere\.backends\.crystal"):
        in_one(other)


OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 5, "transaction_mode": "EXCLUSIVE", "init_command": "PRAGMA user_version=7"},
    "postgresql": {
        "pool": True, "isolation_level": 3, "sslmode": "prefer", "connect_timeout": 5, "client_encoding": "LATIN1",
        "options": "-c statement_timeout=1 -c bytea_output=escape -c DateStyle=German -c TimeZone=Asia/Tokyo",
    },
    "mysql": {
        "charset": "utf8mb4", "isolation_level": "serializable", "connect_timeout": 5,
        "init_command": "SET SESSION time_zone='-05:00', sql_mode='STRICT_TRANS_TABLES,ANSI_QUOTES'",
    },
}  # fmt: skip


@pytest.mark.parametrize("reader", table_reader.READERS)
def test_the_projects_options_change_nothing_of_what_is_read(
    reader: str, database: Database
) -> None:
    make_odd_rows()
    other = msgspec.structs.replace(database, options=OPTIONS[connection.vendor])
    found = in_one(other, reader=reader).to_pylist()
    assert [tuple(row.values()) for row in found] == as_django_reads()


def test_the_role_that_the_project_assumes_is_assumed(database: Database) -> None:
    if connection.vendor != "postgresql":
        return
    make_rows(1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE delayq_stranger")
    try:
        other = msgspec.structs.replace(database, options={"assume_role": "delayq_stranger"})
        with pytest.raises(Exception, match="permission denied"):
            in_one(other)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP ROLE delayq_stranger")


def test_a_database_that_is_away_is_named_and_its_password_is_not(
    monkeypatch: Any, parameters: Any
) -> None:
    monkeypatch.setenv("CANARY_PASSWORD", "canary-7f3a")
    away = Database(
        engine="django.db.backends.postgresql", name="shop", table="t", host="127.0.0.1", port="1",
        user="u", password=Secret("env:CANARY_PASSWORD"),
    )  # fmt: skip
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1") as error:
        in_one(away)
    assert "canary-7f3a" not in "".join(format_exception(error.value))


def test_no_secret_is_in_a_plan(spark: Any, database: Database, monkeypatch: Any) -> None:
    monkeypatch.setenv("CANARY_PASSWORD", "canary-7f3a")
    other = msgspec.structs.replace(database, password=Secret("env:CANARY_PASSWORD"))
    frame = read_archive(spark, other, (0, 5))
    plan = frame._jdf.queryExecution().toString()
    assert "delayq_archive" in plan
    assert "canary-7f3a" not in plan


def test_a_missing_sqlite_file_is_an_error_and_is_not_made(tmp_path: Path) -> None:
    missing = Database(
        engine="django.db.backends.sqlite3", name=str(tmp_path / "missing"), table="t"
    )
    with pytest.raises(DatabaseUnavailable, match="missing"):
        in_one(missing)
    assert not list(tmp_path.iterdir())


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        in_one(Database(engine="django.db.backends.sqlite3", name=":memory:", table="t"))


@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_reader_of_sqlite_keeps_no_writer_waiting(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "a ?#%41 database"
    with closing(sqlite3.connect(path, timeout=0.2)) as writer:
        writer.execute(f"PRAGMA journal_mode={mode}")
        writer.execute("CREATE TABLE archive (id INTEGER PRIMARY KEY, topic TEXT)")
        writer.executemany("INSERT INTO archive (topic) VALUES (?)", [("orders",)] * 5_000)
        writer.commit()
    database = Database(engine="django.db.backends.sqlite3", name=str(path), table="archive")
    reading = table_reader.read_rows(database, schemas.chosen(schemas.ARCHIVE, ["topic"]), ALL)
    read = next(reading).num_rows
    with closing(sqlite3.connect(path, timeout=0.2)) as writer:
        writer.execute("INSERT INTO archive (topic) VALUES ('mail')")
        writer.commit()
    assert read + sum(batch.num_rows for batch in reading) == 5_001


@pytest.mark.django_db
@pytest.mark.parametrize("reader", table_reader.READERS)
def test_what_a_killed_writer_left_in_sqlite_is_undone_and_the_rows_are_read(
    reader: str, tmp_path: Path
) -> None:
    running, killed = tmp_path / "running", tmp_path / "killed"
    with closing(sqlite3.connect(running)) as writer:
        writer.execute("CREATE TABLE archive (id INTEGER PRIMARY KEY, topic TEXT)")
        writer.execute("INSERT INTO archive (topic) VALUES ('orders')")
        writer.commit()
        writer.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit
        writer.executemany("INSERT INTO archive (topic) VALUES (?)", [("mail",)] * 20_000)
        for end in ("", "-journal"):
            Path(f"{killed}{end}").write_bytes(Path(f"{running}{end}").read_bytes())
    database = Database(engine="django.db.backends.sqlite3", name=str(killed), table="archive")
    assert in_one(database, ["topic"], reader=reader)["topic"].to_pylist() == ["orders"]


@pytest.mark.django_db
def test_no_reader_of_sqlite_can_write(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("CREATE TABLE archive (id INTEGER PRIMARY KEY)")
    database = Database(engine="django.db.backends.sqlite3", name=str(path), table="archive")
    insert = "INSERT INTO archive VALUES (1) RETURNING id"
    with adbc.sqlite_columns(database, 1) as columns, pytest.raises(Exception, match="readonly"):
        columns(insert)
    with connected(database) as opened, pytest.raises(Exception, match="readonly"):
        select_rows(opened, insert)


@pytest.mark.django_db
def test_a_query_neither_makes_a_database_of_sqlite_nor_changes_its_mode(tmp_path: Path) -> None:
    options = {"init_command": "PRAGMA journal_mode = WAL"}
    engine, path = "django.db.backends.sqlite3", tmp_path / "archive"
    database = Database(engine=engine, name=str(path), table="archive", options=options)
    source = QuerySource({"database": encoded(database), "query": "SELECT 1 AS number"})
    with pytest.raises(DatabaseUnavailable):
        source.schema()
    assert not path.exists()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("CREATE TABLE archive (id INTEGER PRIMARY KEY)")
        assert source.schema().names == ["number"]
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.django_db
def test_a_query_waits_for_a_writer_of_sqlite_as_long_as_other_readers(tmp_path: Path) -> None:
    database = Database(
        engine="django.db.backends.sqlite3", name=str(tmp_path / "archive"), table="archive"
    )
    sqlite3.connect(database.name).close()
    query = "SELECT timeout AS ms FROM pragma_busy_timeout"
    source = QuerySource({"database": encoded(database), "query": query})
    (batch,) = source.reader(source.schema()).read(InputPartition(0))
    assert batch.to_pydict() == {"ms": [60_000]}


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("/srv/shop #1?.db", "file:///srv/shop%20%231%3F.db?mode=rw"),
        ("file:/srv/shop.db", "file:/srv/shop.db?mode=rw"),
        ("file:/srv/shop.db?mode=rwc&cache=private", "file:/srv/shop.db?cache=private&mode=rw"),
        ("file:/srv/shop.db?mode=ro&nolock=1", "file:/srv/shop.db?mode=ro&nolock=1"),
    ],
)
def test_no_address_of_sqlite_makes_a_new_database(name: str, address: str) -> None:
    assert address_of(name) == address


def test_big_rows_make_small_batches(database: Database) -> None:
    make_rows(600, body="x" * 100_000)
    batches = list(table_reader.read_rows(database, schemas.ARCHIVE, ALL))
    assert sum(batch.num_rows for batch in batches) == 600
    assert max(batch.nbytes for batch in batches) < 3 * table_reader.CHUNK


# Refused


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lo": "first"}, "`lo` is 'first'"),
        ({"parts": "many"}, "`parts` is 'many'"),
        ({"database": "{}"}, "missing required field"),
        ({"reader": "fast"}, "no reader 'fast'"),
    ],
)
def test_options_that_mean_nothing_are_said(
    options: dict[str, str], said: str, database: Database
) -> None:
    given = {"database": encoded(database), **options}
    with pytest.raises(ConfigurationError, match=said):
        list(RangeReader(schemas.ARCHIVE, given).read(InputPartition((0, 5))))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id long, colour string", "There is no column 'colour'"),
        ("id string", "The column 'id' is of type bigint, not string"),
    ],
)
def test_columns_that_the_archive_has_not_got_are_said(
    schema: str, said: str, spark: Any, database: Database
) -> None:
    reader = (
        spark.read.format("delayq_archive").schema(schema).option("database", encoded(database))
    )
    with pytest.raises(Exception, match=said):
        reader.load().collect()


def test_the_option_database_is_needed(spark: Any) -> None:
    with pytest.raises(Exception, match="`database` is missing"):
        spark.read.format("delayq_archive").load().collect()


@pytest.mark.parametrize(
    ("options", "said"),
    [({"query": "SELECT 1"}, "`database` is missing"),
     ({"query": "SELECT 1", "database": "{}"}, "`database` cannot be read")],
)  # fmt: skip
def test_a_query_without_a_database_says_so(options: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        QuerySource(options).schema()


def test_a_column_that_there_is_not_is_refused_before_anything_is_read(
    spark: Any, database: Database
) -> None:
    with pytest.raises(ConfigurationError, match="There is no column 'colour'"):
        read_archive(spark, database, (0, 5), ["id", "colour"])
