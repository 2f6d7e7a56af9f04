"""Pruning deletes from SQL only what the lake holds for certain."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from django_delayq.core.job_report import Code, Report, ignore
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeError, Refused, cause
from django_delayq.pipeline.lake import pruning
from django_delayq.pipeline.lake.lake import Lake
from django_delayq.pipeline.lake.lake_source import read_lake
from django_delayq.pipeline.lake.ledger import Ledger, settled_at
from tests.pipeline.rows import make_rows

DAY = 86_400
AGO = datetime.now(tz=timezone.utc) - timedelta(days=3)
Export = Callable[..., Report]

pytestmark = pytest.mark.databases


@pytest.fixture
def export_now(spark: Any, parameters: Any) -> Export:
    """Runs the export with these options; all that is in the archive is settled."""
    return lambda **options: export.run(spark, parameters(job={"settle": 0, **options}), ignore)


def read_nothing(batch: LakeBatch) -> Any:
    raise AssertionError("it was not to be read")


def left() -> list[int]:
    return list(ArchivedMessage.objects.order_by("pk").values_list("pk", flat=True))


def pruned() -> list[int]:
    return list(LakeBatch.objects.order_by("lo").values_list("pruned", flat=True))


def test_old_rows_go_and_young_ones_stay(export_now: Export, spark: Any, lake: str) -> None:
    make_rows(10, finished_at=AGO)
    young = make_rows(10, finished_at=lambda n: AGO + timedelta(days=n / 3, hours=1))[6:]
    report = export_now(batch=10, prune=DAY, by="ops")
    assert report.code == Code.DONE
    assert (report.figures["pruned"], left()) == (20 - len(young), young)
    assert pruned() == [10, 10 - len(young)]
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.count) == ("prune", "ops", 20 - len(young))
    assert action.finished_at is not None
    assert action.lake == lake
    assert read_lake(spark, Lake(lake)).count() == 20
    assert export_now(prune=DAY).figures["pruned"] == 0
    assert OperatorAction.objects.count() == 1


def test_open_dead_letters_stay_until_somebody_deals_with_them(export_now: Export) -> None:
    dead = make_rows(3, finished_at=AGO, state="dead")
    make_rows(4, finished_at=AGO)
    ArchivedMessage.objects.filter(pk=dead[0]).update(replayed_at=AGO)
    report = export_now(prune=DAY)
    assert (report.figures["pruned"], report.figures["kept_dead_letters"]) == (5, 2)
    assert left() == dead[1:]
    assert pruned() == [5]
    ArchivedMessage.objects.filter(pk=dead[1]).update(discarded_at=AGO)
    assert export_now(prune=DAY).figures["pruned"] == 1
    assert left() == dead[2:]
    ArchivedMessage.objects.all().delete()  # as delayq prune --state dead
    assert export_now(prune=DAY).problems == []


def test_a_batch_with_a_row_that_the_lake_lacks_stays(export_now: Export) -> None:
    ids = make_rows(10, finished_at=AGO)
    ids += make_rows(10, finished_at=AGO)
    ArchivedMessage.objects.filter(pk=ids[5]).delete()
    export_now(batch=9)
    row = ArchivedMessage.objects.get(pk=ids[0])
    row.pk, row.message_id = ids[5], "0" * 32  # with an id that was taken, and committed late
    row.save(force_insert=True)
    before = left()
    report = export_now(prune=DAY)
    assert report.code == Code.REFUSED
    assert "1 rows of SQL are not as the lake has them" in report.problems[0]
    assert left() == [pk for pk in before if pk <= ids[9]]  # the others went
    assert LakeBatch.objects.order_by("lo")[0].problem == report.problems[0]


def test_a_row_that_comes_while_a_batch_is_compared_stops_the_deletion(
    export_now: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = make_rows(10, finished_at=AGO)
    ArchivedMessage.objects.filter(pk=ids[5]).delete()
    export_now()
    compare = export.compare_batches

    def slow(*arguments: Any) -> Any:
        found = compare(*arguments)
        row = ArchivedMessage.objects.get(pk=ids[0])
        row.pk, row.message_id = ids[5], "0" * 32
        row.save(force_insert=True)
        return found

    monkeypatch.setattr(export, "compare_batches", slow)
    report = export_now(prune=DAY)
    assert "it got rows while it was compared" in report.problems[0]
    assert len(left()) == 10


def test_a_batch_of_which_a_row_is_not_as_the_lake_has_it_stays(export_now: Export) -> None:
    ids = make_rows(10, finished_at=AGO)
    export_now()
    ArchivedMessage.objects.filter(pk=ids[3]).update(worker="somebody else")
    report = export_now(prune=DAY)
    assert (report.code, left()) == (Code.REFUSED, ids)
    assert "rows of SQL are not as the lake has them" in report.problems[0]
    assert LakeBatch.objects.get().problem == report.problems[0]


def test_of_what_is_pruned_in_part_no_row_goes_that_the_lake_has_not(export_now: Export) -> None:
    dead = make_rows(2, finished_at=AGO, state="dead")
    make_rows(4, finished_at=AGO)
    export_now()
    export_now(prune=DAY)
    row = ArchivedMessage.objects.get(pk=dead[1])
    row.delete()
    row.pk, row.message_id, row.discarded_at = dead[1], "0" * 32, AGO  # another one's
    row.save(force_insert=True)
    assert "rows of SQL are not" in export_now(prune=DAY).problems[0]
    assert left() == dead


def test_a_day_is_not_pruned_before_it_is_over_or_counted(
    export_now: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(tz=timezone.utc)
    make_rows(5, finished_at=(now - timedelta(hours=2)).replace(hour=1))
    export_now()

    class Noon(datetime):
        hours = 12

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return (now - timedelta(hours=2)).replace(hour=cls.hours, minute=2) + timedelta(
                days=1
            ) * (cls.hours == 0)

    monkeypatch.setattr(pruning, "datetime", Noon)
    assert export_now(prune=3600).figures["pruned"] == 0
    Noon.hours = 0  # two minutes of the next day: rows may still come
    assert export_now(prune=3600).figures["pruned"] == 0
    LakeBatch.objects.update(counted_at=now)
    assert export_now(prune=3600).figures["pruned"] == 5


@pytest.mark.parametrize("damage", ["missing", "shorter", "another"])
def test_nothing_goes_while_a_file_of_the_lake_is_not_as_it_was(
    export_now: Export, lake: str, damage: str
) -> None:
    make_rows(10, finished_at=AGO)
    export_now()
    (path,) = map(Path, Lake(lake).uris())
    if damage == "missing":
        path.unlink()
    elif damage == "shorter":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(Exception, match="cannot be read") as error:
        export_now(prune=DAY)
    assert isinstance(cause(error.value), LakeError)
    assert len(left()) == 10


def test_a_prune_that_was_interrupted_goes_on(
    export_now: Export, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = make_rows(1, finished_at=AGO, state="dead")
    make_rows(20, finished_at=AGO)
    export_now()
    monkeypatch.setattr(pruning, "CHUNK", 5)
    delete, calls = pruning.delete_counted, []

    def once(*arguments: Any) -> int:
        if calls:
            raise KeyboardInterrupt
        calls.append(arguments)
        return delete(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pruning, "delete_counted", once)
        with pytest.raises(KeyboardInterrupt):
            export_now(prune=DAY)
    gone = pruned()[0]
    assert 4 <= gone <= 5 and len(left()) == 21 - gone
    assert OperatorAction.objects.get().finished_at is None
    assert export_now(prune=DAY).figures["pruned"] == 20 - gone
    assert (left(), pruned()) == (dead, [20])
    assert sum(OperatorAction.objects.values_list("count", flat=True)) == 20


def test_a_dry_run_counts(spark: Any, parameters: Any, export_now: Export) -> None:
    make_rows(3, finished_at=AGO, state="dead")
    make_rows(4, finished_at=AGO)
    export_now()
    report = export.run(spark, parameters(job={"settle": 0, "prune": DAY}, dry_run=True), ignore)
    assert (report.figures["pruned"], report.figures["kept_dead_letters"]) == (4, 3)
    assert len(left()) == 7
    assert not OperatorAction.objects.exists()


@pytest.mark.long
def test_a_project_without_time_zones_exports_and_prunes(
    export_now: Export, lake: str, settings: Any
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"
    make_rows(5, finished_at=AGO)
    young = make_rows(
        1, finished_at=lambda n: datetime.now(tz=timezone.utc) - timedelta(days=1, hours=-1)
    )
    report = export_now(batch=5, prune=DAY)
    assert (report.figures["pruned"], left()) == (5, young)
    assert settled_at(Lake(lake).last_id) <= datetime.now(tz=timezone.utc)


def test_less_than_an_hour_is_refused(export_now: Export, lake: str) -> None:
    make_rows(1, finished_at=AGO)
    with pytest.raises(Refused):
        export_now(prune=3599)
    with pytest.raises(Refused, match="1 hour"):
        pruning.prune_batches(
            Ledger(Lake(lake)),
            timedelta(minutes=59),
            read_nothing,
            by="",
            dry_run=False,
            tell=print,
        )
