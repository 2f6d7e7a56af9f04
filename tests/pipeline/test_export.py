"""The export takes what is settled to the lake, once, and refuses what it cannot vouch for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import connection, connections, transaction
from pyspark.testing import assertDataFrameEqual

from django_delayq.models import ArchivedMessage, LakeBatch
from django_delayq.pipeline import jobs
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import Code, LakeConflict, LakeError, Refused
from django_delayq.pipeline.lake import batches
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.reader import read_lake
from django_delayq.pipeline.params import Report
from django_delayq.pipeline.sources.archive_source import read_archive
from tests.pipeline.rows import make_odd_rows, make_rows

NOON = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
Export = Callable[..., Report]


@pytest.fixture
def told() -> list[str]:
    """What the job has said."""
    return []


@pytest.fixture
def export_now(spark: Any, parameters: Any, told: list[str]) -> Export:
    """Runs the export with these options; all that is in the archive is settled."""

    def run(*, dry_run: bool = False, **options: Any) -> Report:
        params = parameters(job={"settle": 0, **options}, dry_run=dry_run)
        return jobs.run("export", spark, params, told.append)

    return run


@pytest.mark.databases
def test_the_lake_has_every_row_as_sql_has_it(
    spark: Any, parameters: Any, export_now: Export, lake: str
) -> None:
    ids = make_odd_rows()
    report = export_now(batch=17)
    assert report.code == Code.DONE
    assert (report.figures["rows"], report.figures["batches"]) == (len(ids), -(-len(ids) // 17))
    assert report.figures["last_id"] == ids[-1]
    sql = read_archive(spark, parameters().database, (0, ids[-1]))
    assertDataFrameEqual(read_lake(spark, Lake(lake)), sql)


@pytest.mark.long
@pytest.mark.databases
def test_the_ledger_says_what_the_commits_say(export_now: Export, lake: str) -> None:
    ids = make_rows(30, finished_at=lambda n: NOON + timedelta(minutes=n * 10))
    export_now(batch=20)
    first, second = Lake(lake).commits()
    batches = list(LakeBatch.objects.order_by("lo"))
    assert [(b.lo, b.hi, b.state, b.seq, b.rows) for b in batches] == [
        (0, ids[19], "committed", 1, 20),
        (ids[19], ids[29], "committed", 2, 10),
    ]
    assert [b.signature for b in batches] == [first.signature, second.signature]
    assert (batches[0].oldest_at, batches[0].newest_at) == (NOON, NOON + timedelta(minutes=190))
    assert all(b.counted_at is None and not b.problem for b in batches)
    assert first.hours == ["2026-11-18T12:00:00Z", "2026-11-18T13:00:00Z", "2026-11-18T14:00:00Z",
                           "2026-11-18T15:00:00Z"]  # fmt: skip
    assert sum(int(file.signature) for file in first.files) == int(first.signature)


def test_an_empty_archive_makes_no_commit(export_now: Export, lake: str) -> None:
    report = export_now()
    assert (report.code, report.figures["rows"], report.figures["last_id"]) == (Code.DONE, 0, 0)
    assert Lake(lake).commits() == []
    assert not LakeBatch.objects.exists()


def test_nothing_new_makes_no_commit(export_now: Export, lake: str) -> None:
    make_rows(3)
    export_now()
    assert export_now().figures["rows"] == 0
    assert len(Lake(lake).commits()) == 1


@pytest.mark.long
def test_one_new_row_is_a_batch(spark: Any, export_now: Export, lake: str) -> None:
    make_rows(3)
    export_now()
    (new,) = make_rows(1)
    assert export_now().figures["rows"] == 1
    assert (Lake(lake).last_id, read_lake(spark, Lake(lake)).count()) == (new, 4)


def test_rows_lie_under_the_utc_date_on_which_they_finished(
    spark: Any, export_now: Export, lake: str
) -> None:
    midnight = datetime(2026, 11, 19, tzinfo=timezone.utc)
    instants = [
        midnight - timedelta(microseconds=1),
        midnight,
        midnight + timedelta(microseconds=1),
    ]
    make_rows(3, finished_at=lambda n: instants[n])
    export_now()
    assert sorted((file.dt, file.rows) for file in Lake(lake).files()) == [
        ("2026-11-18", 1),
        ("2026-11-19", 2),
    ]
    assert read_lake(spark, Lake(lake), ["id"], since="2026-11-19").count() == 2
    assert read_lake(spark, Lake(lake), ["id"], until="2026-11-18").count() == 1


def test_what_is_not_settled_waits(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(10)
    with monkeypatch.context() as patch:
        patch.setattr(export, "last_settled_id", lambda seconds: ids[4])
        assert export_now(settle=600).figures["rows"] == 5
    (commit,) = Lake(lake).commits()
    assert commit.hi == ids[4]
    waiting = ArchivedMessage.objects.get(pk=ids[5]).archived_at - timedelta(seconds=600)
    assert datetime.fromisoformat(commit.settled_at.replace("Z", "+00:00")) <= waiting
    assert export_now().figures["rows"] == 5


@pytest.mark.databases
def test_a_row_that_commits_late_is_not_skipped(export_now: Export, lake: str, spark: Any) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite has one writer at a time")
    inserted, may_commit = threading.Event(), threading.Event()

    def slow_archiver() -> None:
        with transaction.atomic():
            make_rows(1)
            inserted.set()
            may_commit.wait(30)
        connections.close_all()

    thread = threading.Thread(target=slow_archiver)
    thread.start()
    assert inserted.wait(30)
    (quick,) = make_rows(1)  # a bigger id, visible first
    assert export_now().figures["rows"] == 0
    may_commit.set()
    thread.join(30)
    assert export_now().figures["rows"] == 2
    assert Lake(lake).last_id == quick
    assert read_lake(spark, Lake(lake), ["id"]).count() == 2


def test_files_are_sorted_and_tell_the_time_in_microseconds(export_now: Export, lake: str) -> None:
    make_rows(
        40,
        topic=lambda n: ("orders", "mail")[n % 2],
        finished_at=lambda n: NOON - timedelta(seconds=n),
    )
    export_now()
    (path,) = Lake(lake).paths()
    table = pq.read_table(path)
    rows = list(zip(table["topic"].to_pylist(), table["finished_at"].to_pylist(), strict=True))
    assert rows == sorted(rows)
    assert str(pq.read_schema(path).field("finished_at").type) == "timestamp[us, tz=UTC]"
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_dry_run_says_what_would_be_done(export_now: Export, lake: str) -> None:
    ids = make_rows(5)
    report = export_now(dry_run=True, batch=2, compact=True, prune=3600)
    assert report.figures == {
        "rows": 5, "batches": 3, "last_id": 0, "settled_id": ids[-1], "to_sweep": 0, "files_to_compact": 0,
        "pruned": 0, "kept_dead_letters": 0,
    }  # fmt: skip
    assert not Path(lake).exists()
    assert not LakeBatch.objects.exists()


# Two at once


def test_of_two_exports_at_once_one_wins_and_the_other_says_so(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    make_rows(10)
    verified = batches.verified

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(batches, "verified", verified)
        assert export_now().figures["rows"] == 10  # the other one begins later and ends first
        return verified(*arguments)

    monkeypatch.setattr(batches, "verified", slow)
    report = export_now()
    assert report.code == Code.REFUSED
    assert "another export was quicker" in report.problems[0]
    assert read_lake(spark, Lake(lake)).count() == 10
    assert len(list(Path(lake, "data").iterdir())) == 1  # the attempt of the loser is dropped
    (batch,) = LakeBatch.objects.all()
    assert (batch.state, batch.seq, batch.attempt) == (
        "committed",
        1,
        Lake(lake).files()[0].path.split("/")[1],
    )


def test_a_batch_that_does_not_follow_is_refused(
    spark: Any, parameters: Any, export_now: Export, lake: str
) -> None:
    ids = make_rows(10)
    with pytest.raises(LakeConflict, match=f"up to id 0, and this batch begins after {ids[4]:,}"):
        export.append(spark, Lake(lake), parameters().database, (ids[4], ids[9]), bool)
    assert not Path(lake, "data").exists()


def test_a_batch_without_rows_keeps_the_ids_together(
    spark: Any, parameters: Any, lake: str
) -> None:
    commit = export.append(spark, Lake(lake), parameters().database, (0, 7), bool)
    assert (commit.rows, list(commit.files), Lake(lake).last_id) == (0, [], 7)
    assert read_lake(spark, Lake(lake)).count() == 0


# What differs


@pytest.mark.long
def test_files_that_are_not_what_sql_holds_are_not_committed(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(10, body=lambda n: f"{n}")
    copy = batches.copy

    def forge(*arguments: Any) -> Any:
        content = copy(*arguments)
        (path,) = arguments[3].glob("dt=*/*.parquet")
        table = pq.read_table(path)
        column = table.schema.get_field_index("body")
        pq.write_table(table.set_column(column, "body", [["forged"] * 10]), path)
        return content

    monkeypatch.setattr(batches, "copy", forge)
    with pytest.raises(LakeError, match="its source holds"):
        export_now()
    assert Lake(lake).commits() == []
    (batch,) = LakeBatch.objects.all()
    assert batch.state == "written"
    assert "not committed" in batch.problem
    monkeypatch.setattr(batches, "copy", copy)
    assert export_now(grace=0).figures["rows"] == 10


def test_a_source_that_is_counted_otherwise_is_looked_at_again(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(10)
    copy = batches.copy

    def twice(*arguments: Any) -> Any:
        content = copy(*arguments)
        return content + content

    monkeypatch.setattr(batches, "copy", twice)
    assert export_now().code == Code.DONE
    (commit,) = Lake(lake).commits()
    assert commit.rows == LakeBatch.objects.get().rows == 10


def test_what_the_database_does_not_show_is_said(
    export_now: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "unseen_writers", lambda: ["GRANT PROCESS"])
    report = export_now()
    assert (report.code, report.problems) == (Code.DONE, ["GRANT PROCESS"])
    assert export_now(dry_run=True).problems == ["GRANT PROCESS"]


def test_rows_of_other_columns_are_refused(spark: Any, parameters: Any, lake: str) -> None:
    make_rows(1)
    frame = read_archive(spark, parameters().database, (0, 10)).withColumnRenamed("body", "content")
    with pytest.raises(Refused, match="Look at: body, content"):
        batches.write_files(spark, frame, Lake(lake).attempt(0, 10))


def test_a_session_in_another_zone_is_refused(spark: Any, export_now: Export, lake: str) -> None:
    make_rows(1)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with pytest.raises(Refused, match="New_York"):
            export_now()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert not Path(lake).exists()
