"""Compaction gives the same rows in fewer files, or changes nothing."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.testing import assertDataFrameEqual

from django_delayq.core.job_report import ignore
from django_delayq.pipeline.export import export
from django_delayq.pipeline.lake import compaction
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from tests.pipeline.rows import make_rows

NOON = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
NOW = NOON + timedelta(days=1)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the first test leaves a copy of its lake for the others."""
    return tmp_path_factory.mktemp("template") / "lake"


@pytest.fixture
def full(spark: Any, parameters: Any, lake: str, template: Path) -> Lake:
    """A lake as fill() makes it. SQL has its rows in the first test only."""
    if template.exists():
        shutil.copytree(template, lake)
    else:
        fill(spark, parameters)
        shutil.copytree(lake, template)
    return Lake(lake)


def fill(spark: Any, parameters: Any) -> None:
    """Six files of a day that is over, in three batches, and two files of today (NOW)."""
    params = parameters(job={"settle": 0, "batch": 10, "compact": False})
    make_rows(30, finished_at=lambda n: NOON + timedelta(minutes=n))
    export.run(spark, params, ignore)
    make_rows(20, finished_at=lambda n: NOW - timedelta(minutes=n))
    export.run(spark, params, ignore)


def days(lake: Lake) -> dict[str, list[int]]:
    """Rows of the files by their dates, of the newest version."""
    lake.refresh()
    found: dict[str, list[int]] = {}
    for file in lake.files():
        found.setdefault(str(file.dt), []).append(file.rows)
    return found


def test_the_small_files_of_days_that_are_over_become_one(spark: Any, full: Lake) -> None:
    rows = read_lake(spark, full).collect()
    assert days(full) == {"2026-11-18": [10, 10, 10], "2026-11-19": [10, 10]}
    figures = compaction.compact(spark, full, NOW, ignore)
    assert figures == {"compacted_files": 3, "compacted_into": 1}
    assert days(full) == {"2026-11-18": [30], "2026-11-19": [10, 10]}
    assertDataFrameEqual(read_lake(spark, full).collect(), rows)
    assert compaction.compact(spark, full, NOW, ignore) == {
        "compacted_files": 0,
        "compacted_into": 0,
    }


def test_groups_are_of_bounded_size(full: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "SMALL", 100)
    assert compaction.groups(full, NOW) == []
    (size, *_) = (file.bytes for file in full.files())
    monkeypatch.setattr(compaction, "SMALL", size + 100)
    assert [len(group) for group in compaction.groups(full, NOW)] == [2]
    monkeypatch.undo()
    (group,) = compaction.groups(full, NOW)
    assert {str(file.dt) for file in group} == {"2026-11-18"}


def test_files_that_are_not_as_the_log_says_are_not_compacted(spark: Any, full: Lake) -> None:
    import pyarrow.parquet as pq

    victim = full.uris(until="2026-11-18")[0]
    pq.write_table(pq.read_table(victim, partitioning=None).slice(0, 9), victim)
    with pytest.raises(Exception, match="has 9 rows, the log of the lake says 10"):
        compaction.compact(spark, full, NOW, ignore)
    assert days(full) == {"2026-11-18": [10, 10, 10], "2026-11-19": [10, 10]}


def test_of_two_compactions_at_once_one_counts(
    spark: Any, full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = compaction.merge

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(compaction, "merge", merge)
        merged = merge(*arguments)
        compaction.compact(spark, Lake(full.storage), NOW, ignore)
        return merged

    monkeypatch.setattr(compaction, "merge", slow)
    assert compaction.compact(spark, full, NOW, ignore)["compacted_into"] == 0
    assert days(full) == {"2026-11-18": [30], "2026-11-19": [10, 10]}
    assert read_lake(spark, full).count() == 50


@pytest.mark.long
def test_an_export_compacts_unless_it_is_told_not_to(
    spark: Any, lake: str, parameters: Any
) -> None:
    fill(spark, parameters)
    report = export.run(spark, parameters(job={"settle": 0}), ignore)
    assert report.figures["compacted_files"] >= 3  # today, by the real clock, may be another day
    assert read_lake(spark, Lake(lake)).count() == 50
    make_rows(1)
    assert export.run(spark, parameters(job={"settle": 0}), ignore).figures["rows"] == 1


def test_an_export_drops_the_days_that_are_too_old(spark: Any, lake: str, parameters: Any) -> None:
    now = datetime.now(tz=timezone.utc)
    make_rows(6, finished_at=lambda n: now - timedelta(days=n))
    job = {"settle": 0, "retain": 2 * 86_400, "compact": False}
    report = export.run(spark, parameters(job=job), ignore)
    assert report.figures["dropped_rows"] == 3
    dates = sorted(str(file.dt) for file in Lake(lake).files())
    assert dates == [f"{now - timedelta(days=n):%Y-%m-%d}" for n in (2, 1, 0)]
    # What was dropped on purpose does not keep the archive from being pruned.
    report = export.run(spark, parameters(job={**job, "prune": 3600}), ignore)
    assert (report.code, report.problems) == (0, [])
    assert report.figures["pruned"] == 5
