"""Lakes and archives that do not belong together are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job_report import Report, ignore
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from django_delayq.pipeline.params import Storage
from tests.pipeline.rows import INSTANTS, make_rows

Export = Callable[..., Report]


@pytest.fixture
def export_now(spark: Any, parameters: Any, lake: str) -> Export:
    """Runs the export with these options, to this lake; all that is in the archive is settled."""

    def run(*, to: str = "", **options: Any) -> Report:
        return export.run(
            spark, parameters(lake=Storage(to or lake), job={"settle": 0, **options}), ignore
        )

    return run


@pytest.mark.databases
def test_a_lake_of_another_database_is_refused(export_now: Export, lake: str) -> None:
    make_rows(5)
    export_now()
    LakeBatch.objects.all().delete()  # this database has never seen it
    with pytest.raises(Refused, match="of another archive"):
        export_now()
    assert export_now(to=f"{lake}-new").figures["rows"] == 5
    Path(f"{lake}-new").rename(f"{lake}-gone")
    Path(lake).rename(f"{lake}-new")  # the ledger knows this path, but of another lake
    with pytest.raises(Refused, match="of another archive"):
        export_now(to=f"{lake}-new")


@pytest.mark.databases
def test_an_archive_that_was_restored_from_a_backup_is_refused(export_now: Export) -> None:
    ids = make_rows(10)
    export_now(batch=5)
    LakeBatch.objects.filter(lo=ids[4]).delete()
    ArchivedMessage.objects.filter(pk__gt=ids[4]).delete()
    with pytest.raises(Refused, match="restored from a backup"):
        export_now()
    make_rows(20)  # also when it has grown again
    with pytest.raises(Refused, match="restored from a backup"):
        export_now()


def test_an_archive_that_ends_below_the_lake_is_refused_unless_it_was_pruned(
    export_now: Export,
) -> None:
    ids = make_rows(10)
    export_now()
    ArchivedMessage.objects.filter(pk__gt=ids[4]).delete()
    with pytest.raises(Refused, match=f"ends at id {ids[4]:,}"):
        export_now()
    OperatorAction.objects.create(action="prune", operator="ops")
    assert export_now().figures["rows"] == 0


@pytest.mark.databases
def test_a_backup_from_between_plan_and_commit_is_known(export_now: Export) -> None:
    ids = make_rows(5)
    export_now()
    # The batch had ended sooner when it was begun first; or another export has begun it just now,
    # which is no matter.
    LakeBatch.objects.update(version=None, hi=ids[2], rows=None)
    assert export_now().figures["rows"] == 0
    LakeBatch.objects.update(version=None, hi=ids[2], rows=None)
    ArchivedMessage.objects.filter(pk__gt=ids[2]).delete()
    make_rows(9, finished_at=INSTANTS[1])
    with pytest.raises(Refused, match="restored from a backup"):
        export_now()


def test_a_prune_that_was_interrupted_long_ago_explains_nothing(export_now: Export) -> None:
    ids = make_rows(10)
    OperatorAction.objects.create(action="prune", operator="ops")
    OperatorAction.objects.update(started_at=datetime.now(tz=timezone.utc) - timedelta(days=2))
    export_now()
    ArchivedMessage.objects.filter(pk__gt=ids[4]).delete()
    with pytest.raises(Refused, match="no prune is on record"):
        export_now()
    OperatorAction.objects.update(started_at=datetime.now(tz=timezone.utc) - timedelta(hours=2))
    assert export_now().figures["rows"] == 0


def test_a_lake_that_was_moved_is_known_by_its_table(export_now: Export, lake: str) -> None:
    make_rows(5)
    export_now()
    Path(lake).rename(f"{lake}-away")
    assert export_now(to=f"{lake}-away").figures["rows"] == 0
    assert export_now().figures["rows"] == 5  # an empty folder: a new lake, which is said
    assert "has another lake" in export_now(to=f"{lake}-third").problems[0]


def test_the_older_one_of_two_copies_is_refused(export_now: Export, lake: str) -> None:
    make_rows(5)
    export_now()
    shutil.copytree(lake, f"{lake}-copy")
    make_rows(2)
    assert export_now(to=f"{lake}-copy").figures["rows"] == 2
    with pytest.raises(Refused, match="it is an older copy"):
        export_now()


@pytest.mark.long
def test_a_lake_with_stumps_of_killed_writers_is_read_right(
    spark: Any, export_now: Export, lake: str
) -> None:
    make_rows(5, finished_at=INSTANTS[0])
    export_now()
    (path,) = map(Path, Lake(lake).uris())
    path.with_name("part-00009.parquet").write_bytes(b"PAR1")
    assert read_lake(spark, Lake(lake)).count() == 5
    make_rows(2)
    assert export_now().figures["rows"] == 2
    assert read_lake(spark, Lake(lake)).count() == 7
