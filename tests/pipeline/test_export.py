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

from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.models import ArchivedMessage, LakeBatch
from django_delayq.pipeline import jobs
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeConflict, LakeError, Refused
from django_delayq.pipeline.lake import batches
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from django_delayq.pipeline.lake.ledger import Ledger, settled_at
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
        return jobs.run("export", spark, params, lambda line, *counts: told.append(line))

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


@pytest.mark.databases
def test_the_ledger_says_what_the_log_says(export_now: Export, lake: str) -> None:
    ids = make_rows(30, finished_at=lambda n: NOON + timedelta(minutes=n * 10))
    export_now(batch=20)
    log = Lake(lake).appended(-1)
    assert [(one.lo, one.hi, one.rows) for one in log] == [(0, ids[19], 20), (ids[19], ids[29], 10)]
    batches = list(LakeBatch.objects.order_by("lo"))
    assert [(b.lo, b.hi, b.version, b.rows) for b in batches] == [
        (one.lo, one.hi, one.version, one.rows) for one in log
    ]
    assert {str(b.table_id) for b in batches} == {Lake(lake).table_id}
    assert all(b.counted_at is None and not b.problem for b in batches)
    assert log[0].newest - log[0].oldest == 190 * 60 * 10**6


def test_an_empty_archive_makes_no_commit(export_now: Export, lake: str) -> None:
    report = export_now()
    assert (report.code, report.figures["rows"], report.figures["last_id"]) == (Code.DONE, 0, 0)
    assert not Lake(lake).exists
    assert not LakeBatch.objects.exists()


def test_nothing_new_makes_no_commit(export_now: Export, lake: str) -> None:
    make_rows(3)
    export_now()
    assert export_now().figures["rows"] == 0
    assert len(Lake(lake).appended(-1)) == 1


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
    assert sorted((str(file.dt), file.rows) for file in Lake(lake).files()) == [
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
    assert Lake(lake).last_id == ids[4]
    waiting = ArchivedMessage.objects.get(pk=ids[5]).archived_at - timedelta(seconds=600)
    assert settled_at(ids[4], 600) <= waiting
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
    (path,) = Lake(lake).uris()
    table = pq.read_table(path, partitioning=None)
    rows = list(zip(table["topic"].to_pylist(), table["finished_at"].to_pylist(), strict=True))
    assert rows == sorted(rows)
    assert str(pq.read_schema(path).field("finished_at").type) == "timestamp[us, tz=UTC]"
    assert pq.ParquetFile(path).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_dry_run_says_what_would_be_done(export_now: Export, lake: str) -> None:
    ids = make_rows(5)
    report = export_now(dry_run=True, batch=2, prune=3600)
    assert report.figures == {
        "rows": 5, "batches": 3, "last_id": 0, "settled_id": ids[-1], "files_to_compact": 0,
        "pruned": 0, "kept_dead_letters": 0,
    }  # fmt: skip
    assert not Path(lake).exists()
    assert not LakeBatch.objects.exists()


# Two at once


def test_of_two_exports_at_once_one_wins_and_the_other_says_so(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    make_rows(10)
    copy = batches.copy

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(batches, "copy", copy)
        files = copy(*arguments)
        assert export_now().figures["rows"] == 10  # the other one begins later and ends first
        return files

    monkeypatch.setattr(batches, "copy", slow)
    report = export_now()
    assert report.code == Code.REFUSED
    assert "another export was quicker" in report.problems[0]
    assert read_lake(spark, Lake(lake)).count() == 10
    (batch,) = LakeBatch.objects.all()
    assert (batch.version, batch.rows) == (1, 10)


def test_a_batch_that_does_not_follow_is_refused(
    spark: Any, parameters: Any, export_now: Export, lake: str
) -> None:
    ids = make_rows(10)
    ledger = Ledger(Lake(lake))
    with pytest.raises(LakeConflict, match=f"up to id 0, and this batch begins after {ids[4]:,}"):
        export.append(spark, ledger, parameters().database, (ids[4], ids[9]), ignore)
    assert not Path(lake).exists()


def test_a_batch_without_rows_keeps_the_ids_together(
    spark: Any, parameters: Any, lake: str
) -> None:
    ledger = Ledger(Lake(lake))
    ledger.lake.create()
    version, files = export.append(spark, ledger, parameters().database, (0, 7), ignore)
    assert (version, files, Lake(lake).last_id) == (1, [], 7)
    assert read_lake(spark, Lake(lake)).count() == 0


# What differs


def test_rows_that_are_missing_are_not_committed(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_rows(10, topic=lambda n: f"{n}", finished_at=lambda n: NOON - timedelta(days=n))
    copy = batches.copy
    monkeypatch.setattr(batches, "copy", lambda *arguments: copy(*arguments)[1:])
    with pytest.raises(LakeError, match=r"SQL had 10 rows .* the files have 9"):
        export_now()
    assert Lake(lake).last_id == 0
    assert LakeBatch.objects.get().version is None
    monkeypatch.setattr(batches, "copy", copy)
    assert export_now().figures["rows"] == 10


def test_what_the_database_does_not_show_is_said(
    export_now: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "unseen_writers", lambda: ["GRANT PROCESS"])
    report = export_now()
    assert (report.code, report.problems) == (Code.DONE, ["GRANT PROCESS"])
    assert export_now(dry_run=True).problems == ["GRANT PROCESS"]


def test_a_session_in_another_zone_is_refused(spark: Any, export_now: Export, lake: str) -> None:
    make_rows(1)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with pytest.raises(Refused, match="New_York"):
            export_now()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert not Path(lake).exists()
