"""Other tools read the lake, with the same counts and sums; and Spark does without a jar."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from django_delayq.core.exceptions import ConfigurationError
from django_delayq.core.times import epoch_us
from django_delayq.pipeline import schemas
from django_delayq.pipeline.job_errors import LakeError, cause
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import LakeReader, read_lake
from tests.pipeline.lakes import add, ids_in, rows_of

DAY = datetime(2026, 11, 20, 12, tzinfo=timezone.utc)
TOPICS = {"orders": (30, 45.0), "mail": (20, 30.0)}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two topics on three days; one file was replaced, and one is no part of the table."""
    lake = Lake(tmp_path / "lake")
    lake.create()
    for number in range(3):
        lo = lake.last_id
        ids = range(lo + 1, lo + 11)
        files = rows_of(lake, ids, DAY + timedelta(days=number), run_ms=1.5)
        lake.append(files, (lo, lo + 10))
    mail = rows_of(lake, range(31, 51), DAY, topic="mail", run_ms=1.5)
    lake.append(mail, (30, 50))
    first = lake.files()[0]
    lake.replace("compact", [first], rows_of(lake, range(1, 11), DAY, run_ms=1.5))
    rows_of(lake, [99], DAY)
    return lake


def test_pandas_reads_it(lake: Lake) -> None:
    from deltalake import DeltaTable

    frame = DeltaTable(lake.uri).to_pandas(columns=["topic", "run_ms"])
    found = frame.groupby("topic")["run_ms"].agg(["count", "sum"])
    assert {
        topic: tuple(row) for topic, row in zip(found.index, found.values, strict=True)
    } == TOPICS


def test_polars_reads_it(lake: Lake) -> None:
    import polars

    found = (
        polars.scan_delta(lake.uri).group_by("topic").agg(polars.len(), polars.col("run_ms").sum())
    )
    assert {topic: (count, total) for topic, count, total in found.collect().iter_rows()} == TOPICS


def test_the_first_and_the_last_instant_of_all_are_found(tmp_path: Path) -> None:
    """The statistics of a log have milliseconds, and there is no millisecond after the last one."""
    import polars

    first, last = (one.replace(tzinfo=timezone.utc) for one in (datetime.min, datetime.max))
    lake = Lake(tmp_path / "lake")
    lake.create()
    lake.append([*rows_of(lake, [1], first), *rows_of(lake, [2], last)], (0, 2))
    found = polars.scan_delta(lake.uri)
    at = polars.col("finished_at")
    for chosen, ids in ((at >= last, [2]), (at <= first, [1]), (at > first, [2]), (at < last, [1])):
        assert found.filter(chosen).collect()["id"].to_list() == ids
    assert [str(file.dt) for file in Lake(lake.uri).files()] == ["0001-01-01", "9999-12-31"]
    assert Lake(lake.uri).files(ids=(1, 2))[0].newest == epoch_us(last) // 1000 * 1000


QUERY = "SELECT topic, count(*), sum(run_ms) FROM {} GROUP BY topic"


def test_sql_of_delta_rs_reads_it(lake: Lake) -> None:
    from deltalake import DeltaTable, QueryBuilder

    found = QueryBuilder().register("lake", DeltaTable(lake.uri)).execute(QUERY.format("lake"))
    rows = [list(row.values()) for row in pa.table(found.read_all()).to_pylist()]
    assert {topic: (count, total) for topic, count, total in rows} == TOPICS


def test_duckdb_reads_it(lake: Lake) -> None:
    import duckdb

    files = duckdb.sql(QUERY.format("read_parquet($files)"), params={"files": lake.uris()})
    assert {topic: (count, total) for topic, count, total in files.fetchall()} == TOPICS


def test_spark_reads_it_without_a_jar(spark: Any, lake: Lake) -> None:
    for frame in (
        read_lake(spark, lake, ["topic", "run_ms"]),
        spark.read.format("delayq_lake").option("uri", lake.uri).load(),
    ):
        found = frame.groupBy("topic").agg({"*": "count", "run_ms": "sum"}).collect()
        assert {row["topic"]: (row["count(1)"], row["sum(run_ms)"]) for row in found} == TOPICS


def test_spark_opens_only_files_that_may_have_what_is_asked_for(
    spark: Any, lake: Lake, tmp_path: Path
) -> None:
    for file in lake.files(until="2026-11-21"):
        (tmp_path / "lake" / file.path).unlink()
    assert read_lake(spark, lake, ["id"], since="2026-11-22").count() == 10
    frame = spark.read.format("delayq_lake").option("uri", lake.uri).option("since", "2026-11-22")
    assert frame.schema("id long").load().count() == 10
    assert read_lake(spark, lake, ["id"], ids=(25, 30)).count() == 5
    with pytest.raises(Exception, match="cannot be read") as error:
        read_lake(spark, lake, ["id"]).count()
    assert isinstance(cause(error.value), LakeError)


def test_a_lake_without_rows_has_the_columns_of_the_archive(spark: Any, tmp_path: Path) -> None:
    empty = Lake(tmp_path / "none")
    assert read_lake(spark, empty).columns == schemas.ARCHIVE.names
    assert read_lake(spark, empty, ["topic", "id"]).columns == ["topic", "id"]
    assert read_lake(spark, empty).count() == 0


def test_what_is_committed_later_is_not_in_a_frame(spark: Any, lake: Lake) -> None:
    frame = read_lake(spark, lake, ["id"])
    add(Lake(lake.storage), 5)
    assert frame.count() == 50


def test_a_source_without_a_table_says_what_is_missing() -> None:
    with pytest.raises(ConfigurationError, match="option `uri` is missing"):
        LakeReader(schemas.ARCHIVE, {})
    with pytest.raises(ConfigurationError, match="`storage` cannot be read"):
        LakeReader(schemas.ARCHIVE, {"storage": "{"})


# Only what is new


def test_a_consumer_reads_what_came_since_its_version(lake: Lake) -> None:
    from deltalake import DeltaTable

    version = lake.version
    add(lake, 5, DAY)
    small = [file for file in lake.files() if file.rows == 5]
    lake.replace("compact", small, rows_of(lake, range(51, 56), DAY))
    changes = pa.table(DeltaTable(lake.uri).load_cdf(starting_version=version + 1).read_all())
    rows = changes.select(["id", "_change_type"]).to_pylist()
    assert sorted((row["id"], row["_change_type"]) for row in rows) == [
        (pk, "insert") for pk in range(51, 56)
    ]


def test_a_consumer_that_mirrors_the_lake_follows_repairs_and_retention(lake: Lake) -> None:
    from deltalake import DeltaTable

    whole = DeltaTable(lake.uri).to_pyarrow_table(columns=["id", "run_ms"]).to_pylist()
    mirror = {row["id"]: row["run_ms"] for row in whole}
    version = lake.version
    repaired = next(file for file in lake.files() if file.lowest == 11)
    lake.replace("repair", [repaired], rows_of(lake, range(11, 20), DAY, run_ms=7.0))
    lake.retain((DAY + timedelta(days=1)).date())
    add(lake, 5, DAY + timedelta(days=3))
    changes = pa.table(DeltaTable(lake.uri).load_cdf(starting_version=version + 1).read_all())
    found = changes.to_pylist()
    # Version after version; of one id, `delete` comes before `insert`.
    for row in sorted(found, key=lambda row: (row["_commit_version"], row["_change_type"])):
        if row["_change_type"] == "delete":
            mirror.pop(row["id"])
        else:
            mirror[row["id"]] = row["run_ms"]
    assert sorted(mirror) == ids_in(lake)
