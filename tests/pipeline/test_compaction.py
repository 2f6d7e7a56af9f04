"""Compaction gives the same rows in fewer files, or changes nothing."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.testing import assertDataFrameEqual

from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeConflict, LakeError
from django_delayq.pipeline.lake import batches, compaction
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.reader import read_lake
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
    params = parameters(job={"settle": 0, "batch": 10})
    make_rows(30, finished_at=lambda n: NOON + timedelta(minutes=n))
    export.run(spark, params, bool)
    make_rows(20, finished_at=lambda n: NOW - timedelta(minutes=n))
    export.run(spark, params, bool)


def days(lake: Lake) -> dict[str, list[int]]:
    """Rows of the files by their dates."""
    found: dict[str, list[int]] = {}
    for file in lake.files():
        found.setdefault(file.dt, []).append(file.rows)
    return found


def test_the_small_files_of_days_that_are_over_become_one(spark: Any, full: Lake) -> None:
    before = read_lake(spark, full)
    rows, content = before.collect(), batches.digest_of(before)
    assert days(full) == {"2026-11-18": [10, 10, 10], "2026-11-19": [10, 10]}
    figures = compaction.compact(spark, full, NOW, print)
    assert figures == {"compacted_files": 3, "compacted_into": 1}
    assert days(full) == {"2026-11-19": [10, 10], "2026-11-18": [30]}
    assert batches.digest_of(read_lake(spark, full)) == content
    assertDataFrameEqual(read_lake(spark, full).collect(), rows)
    last = full.commits()[-1]
    assert (last.kind, last.settled_at, last.hours) == (
        "compact",
        full.commits()[-2].settled_at,
        [],
    )
    assert compaction.compact(spark, full, NOW, print) == {
        "compacted_files": 0,
        "compacted_into": 0,
    }


def test_replaced_files_stay_for_the_grace_and_then_go(spark: Any, full: Lake) -> None:
    old = full.paths(until="2026-11-18")
    compaction.compact(spark, full, NOW, print)
    assert full.sweep(3600) == 0
    assert all(Path(path).exists() for path in old)
    assert full.sweep(0) == 3
    assert not any(Path(path).exists() for path in old)
    assert read_lake(spark, full).count() == 50


def test_big_files_and_days_with_one_file_stay(
    spark: Any, full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "SMALL", 100)
    assert compaction.small_files(full, NOW) == []
    monkeypatch.undo()
    assert {file.dt for file in compaction.small_files(full, NOW)} == {"2026-11-18"}


def test_files_that_changed_since_their_commit_are_not_compacted(spark: Any, full: Lake) -> None:
    import pyarrow.parquet as pq

    victim = full.check(full.files(until="2026-11-18")[0])
    table = pq.read_table(victim)
    size = victim.stat().st_size
    pq.write_table(table.slice(0, 9), victim, compression="none")
    with victim.open("rb+") as file:  # as long as it was, so that only its rows tell
        content = file.read()
        if len(content) != size:
            lie_about_size(full, victim, len(content))
    with pytest.raises(LakeError, match="Nothing is compacted"):
        compaction.compact(spark, Lake(full.root), NOW, print)
    assert len([c for c in Lake(full.root).commits() if c.kind == "compact"]) == 0


def lie_about_size(lake: Lake, victim: Path, size: int) -> None:
    for path in (lake.root / "commits").iterdir():
        before = f'"bytes": {next((f.bytes for f in lake.files() if lake.root / f.path == victim), None)}'
        path.write_text(path.read_text().replace(before, f'"bytes": {size}'))
    for crc in victim.parent.glob(".*.crc"):
        crc.unlink()


@pytest.mark.long
def test_of_two_compactions_at_once_one_counts(
    spark: Any, full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = batches.verified

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(batches, "verified", verified)
        compaction.compact(
            spark, Lake(full.root), NOW, print
        )  # the other one begins later and ends first
        return verified(*arguments)

    monkeypatch.setattr(batches, "verified", slow)
    with pytest.raises(LakeConflict, match="another compaction"):
        compaction.compact(spark, full, NOW, print)
    assert read_lake(spark, full).count() == 50
    assert not list(full.abandoned(-1))


@pytest.mark.long
def test_an_export_with_compact_says_how_many_files_it_made_one(
    spark: Any, lake: str, parameters: Any
) -> None:
    fill(spark, parameters)
    report = export.run(spark, parameters(job={"settle": 0, "compact": True}), bool)
    assert report.figures["compacted_files"] >= 3  # today, by the real clock, may be another day
    assert read_lake(spark, Lake(lake)).count() == 50
    make_rows(1)
    assert export.run(spark, parameters(job={"settle": 0}), bool).figures["rows"] == 1


@pytest.mark.long
@pytest.mark.parametrize("step", ["read_back", "persist", "add"])
def test_a_compaction_that_dies_has_done_nothing(
    spark: Any, full: Lake, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(batches if step == "read_back" else Lake, step, die)
        with pytest.raises(KeyboardInterrupt):
            compaction.compact(spark, full, NOW, print)
    assert days(full) == {"2026-11-18": [10, 10, 10], "2026-11-19": [10, 10]}
    assert compaction.compact(spark, full, NOW, print)["compacted_into"] == 1
    assert full.sweep(0) == 1 + 3  # what it had begun, and the replaced files
    assert read_lake(spark, full).count() == 50
