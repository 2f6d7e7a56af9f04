"""A person's rows go from the lake in one commit, and the lake stays equal to SQL."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from django_delayq.archive.erasure import ERASED, Person
from django_delayq.core.job_report import ignore
from django_delayq.models import ArchivedMessage, LakeBatch, TaskDay
from django_delayq.operators.erase import Erased, erase
from django_delayq.pipeline.audit import audit
from django_delayq.pipeline.export import export
from django_delayq.pipeline.job_errors import LakeError, Refused
from django_delayq.pipeline.lake import compaction
from django_delayq.pipeline.lake import lake_erasure as module
from django_delayq.pipeline.lake.lake import FigureTable, Lake
from django_delayq.pipeline.lake.lake_erasure import LakeErasure
from django_delayq.pipeline.lake.lake_source import read_lake
from django_delayq.pipeline.lake.ledger import Ledger
from django_delayq.pipeline.stats import stats
from tests.pipeline.rows import make_rows

pytestmark = pytest.mark.databases

SECRET = "anna@example.org"
ANNA = Person(argument="args.0", value=SECRET)
DAY = 86_400
AGO = datetime(2026, 11, 1, 23, 50, tzinfo=timezone.utc)
OPTIONS = {"settle": 0, "batch": 20, "compact": False}


@pytest.fixture
def full(spark: Any, parameters: Any, lake: str) -> Lake:
    """Three batches of 20 rows on two days, of which every seventh is Anna's."""
    make_rows(
        60,
        finished_at=lambda n: AGO + timedelta(minutes=n),
        body=lambda n: json.dumps({"args": [OTHERS if n % 7 else SECRET], "kwargs": {}}),
        key=lambda n: "" if n % 7 else f"mail:{SECRET}",
        state=lambda n: "acked" if n % 2 else "dead",
        reason=lambda n: f"no {SECRET}" if n % 14 == 0 else "",
    )
    export.run(spark, parameters(job=OPTIONS), ignore)
    return Lake(lake)


OTHERS = "otto@example.org"
HIS = sum(1 for n in range(60) if n % 7 == 0)


def erase_now(full: Lake, **options: Any) -> Erased:
    return erase(ANNA, wait=0, lake=LakeErasure(full.storage), **options)


def is_in_files(lake: Lake, secret: str = SECRET) -> bool:
    """Whether a live file has the text anywhere."""
    return any(
        secret in str(pq.read_table(path, partitioning=None).to_pylist())
        for path in Lake(lake.storage).uris()
    )


def audited(spark: Any, parameters: Any) -> Any:
    return audit.run(spark, parameters(), ignore)


@pytest.mark.long
@pytest.mark.parametrize("delete", [pytest.param(False, marks=pytest.mark.long), True])
def test_the_rows_go_in_one_commit_and_all_sums_are_right(
    spark: Any, parameters: Any, full: Lake, delete: bool
) -> None:
    before = full.version
    done = erase_now(full, delete=delete)
    assert done.complete and done.places["lake"].count == HIS == done.places["archive"].count
    full.refresh()
    assert full.version == before + 1 or full.replaced() == 0
    assert not is_in_files(full) and is_in_files(full, OTHERS)
    frame = read_lake(spark, full)
    assert frame.count() == ArchivedMessage.objects.count() == 60 - HIS * delete
    assert frame.where(frame.body == ERASED).count() == HIS * (not delete)
    assert audited(spark, parameters).code == 0
    assert audited(spark, parameters).figures.get("differences", 0) == 0
    assert erase_now(full).places == {}


@pytest.mark.long
@pytest.mark.parametrize("delete", [False, True])
def test_an_export_prunes_what_was_erased_in_part(
    spark: Any, parameters: Any, full: Lake, delete: bool
) -> None:
    erase_now(full, delete=delete)
    job = {**OPTIONS, "prune": DAY, "compact": True}
    report = export.run(spark, parameters(job=job), ignore)
    assert (report.code, report.problems) == (0, [])
    assert not is_in_files(full)
    assert read_lake(spark, Lake(full.storage)).count() == 60 - HIS * delete


@pytest.mark.long
@pytest.mark.parametrize("delete", [False, pytest.param(True, marks=pytest.mark.long)])
def test_rows_that_sql_has_no_more_are_erased(
    spark: Any, parameters: Any, full: Lake, delete: bool
) -> None:
    job = {**OPTIONS, "prune": DAY}
    ArchivedMessage.objects.filter(state="dead").update(discarded_at=AGO)
    export.run(spark, parameters(job=job), ignore)
    assert not ArchivedMessage.objects.exists()
    assert erase_now(full, delete=delete).places["lake"].count == HIS
    assert not is_in_files(full)
    report = export.run(spark, parameters(job=job), ignore)
    assert (report.code, report.problems) == (0, [])
    assert audited(spark, parameters).code == 0


def test_reasons_go_from_the_figures_in_the_lake(spark: Any, parameters: Any, full: Lake) -> None:
    def texts() -> str:
        files = Path(full.uri, "_figures", "task_days").glob("*.parquet")
        return "".join(str(pq.read_table(path)["errors"].to_pylist()) for path in files)

    stats.run(None, parameters(job={"spark": False}), ignore)
    assert SECRET in texts()
    erase_now(full)
    days = FigureTable(full, "task_days")
    found = days.read([AGO.date(), (AGO + timedelta(days=1)).date()])
    assert SECRET not in str(found["errors"].to_pylist())
    assert found.select(["topic", "dead"]).to_pylist() == [
        {"topic": row.topic, "dead": row.dead} for row in TaskDay.objects.order_by("day")
    ]
    assert SECRET in texts()  # in the old file, for its readers
    full.tidy(0)
    assert texts() and SECRET not in texts()


def test_a_dry_run_counts_and_writes_nothing(full: Lake) -> None:
    before = full.version
    done = erase_now(full, dry_run=True)
    assert done.places["lake"].count == HIS and len(done.places["lake"].sample) == 5
    assert Lake(full.storage).version == before


def test_old_files_stay_for_their_readers_and_are_named(full: Lake) -> None:
    old = full.files()
    done = erase_now(full)
    assert any(f"{len(old):,} files" in note for note in done.notes)
    full.refresh()
    assert full.tidy(0) == len(old)
    assert not any("files of the lake" in note for note in erase_now(full).notes)


def test_a_compaction_that_is_quicker_is_followed(
    spark: Any, full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, compacted = module.rewrite, []

    def slow(*arguments: Any) -> Any:
        if not compacted:
            compacted.append(1)
            compaction.compact(spark, Lake(full.storage), AGO + timedelta(days=9), ignore)
        return write(*arguments)

    monkeypatch.setattr(module, "rewrite", slow)
    assert erase_now(full).places["lake"].count == HIS
    assert not is_in_files(full)
    assert len(Lake(full.storage).files()) == 2


@pytest.mark.long
def test_killed_before_or_after_the_commit_it_goes_on(
    spark: Any, parameters: Any, full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Lake, "replace", killed)
        erase_now(full)
    assert is_in_files(full)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Lake, "tidy", killed)
        erase_now(full)
    assert not is_in_files(full)
    assert erase_now(full).complete
    assert audited(spark, parameters).code == 0


def test_an_export_that_has_begun_is_named(full: Lake) -> None:
    Ledger(full).plan((full.last_id, 10**6))
    done = erase_now(full)
    assert not done.complete and "An export to the lake has begun" in done.left[0]


def test_an_export_that_ends_while_the_lake_is_read_is_named(
    full: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(full).plan((full.last_id, 10**6))
    erase_files = LakeErasure._erase

    def erase_and_end(self: LakeErasure, *arguments: Any) -> list[int]:
        found = erase_files(self, *arguments)
        LakeBatch.objects.filter(version=None).update(version=9)
        return found

    monkeypatch.setattr(LakeErasure, "_erase", erase_and_end)
    assert "An export to the lake has begun" in erase_now(full).left[0]


def test_a_damaged_file_stops_it(full: Lake) -> None:
    path = Path(full.uris()[0])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LakeError, match="cannot be read"):
        erase_now(full)


def test_the_lake_of_another_database_is_refused(full: Lake) -> None:
    LakeBatch.objects.all().delete()
    with pytest.raises(Refused):
        erase_now(full)
