"""The lake prunes a partitioned archive: months that it has as a whole are dropped, and its ledger
counts each row."""

from __future__ import annotations

from datetime import datetime, timedelta
from datetime import timezone as zones
from typing import Any

import pytest

from django_delayq.core.job_report import Code
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
from django_delayq.pipeline.export import export
from django_delayq.pipeline.lake import pruning
from tests.archive.test_months import in_default, partitioned, tables  # noqa: F401 - fixtures
from tests.archive.test_partitioning import in_postgresql, month_ago, plain  # noqa: F401
from tests.archive.test_prune import ago
from tests.pipeline.rows import make_rows
from tests.pipeline.test_pruning import (
    DAY,
    Export,
    export_now,  # noqa: F401 - a fixture
    left,
    pruned,
)

pytestmark = [pytest.mark.databases, pytest.mark.long, in_postgresql]

MONTH = 31 * DAY


def test_a_month_goes_with_its_table_and_open_dead_letters_stay(
    partitioned: None,  # noqa: F811 - a fixture
    export_now: Export,  # noqa: F811
) -> None:
    make_rows(10, finished_at=month_ago(4))
    letters = make_rows(2, finished_at=month_ago(4), state="dead")
    make_rows(5, finished_at=month_ago(4))
    young = make_rows(10, finished_at=month_ago(0) - timedelta(days=40))
    before = tables()
    report = export_now(batch=17, prune=2 * MONTH, by="ops")
    assert (report.code, report.problems) == (Code.DONE, [])
    assert (report.figures["pruned"], report.figures["kept_dead_letters"]) == (15, 2)
    assert (left(), in_default()) == ([*letters, *young], letters)
    assert tables() < before
    assert pruned() == [15, 0]
    assert OperatorAction.objects.get(action="prune").count == 15


def test_rows_of_a_month_that_is_not_over_wait_for_it(
    partitioned: None,  # noqa: F811
    export_now: Export,  # noqa: F811
) -> None:
    ids = make_rows(10, finished_at=ago(days=41), enqueued_at=ago(hours=1))
    assert export_now(prune=40 * DAY).figures["pruned"] == 0
    assert left() == ids


def test_a_row_that_the_lake_lacks_keeps_its_month(
    partitioned: None,  # noqa: F811
    export_now: Export,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = make_rows(10, finished_at=month_ago(4))
    ArchivedMessage.objects.filter(pk=ids[5]).delete()
    export_now()

    compare = export.compare_batches

    def slow(*arguments: Any) -> Any:
        """After the look, a row with a smaller id appears."""
        found = compare(*arguments)
        row = ArchivedMessage.objects.get(pk=ids[0])
        row.pk, row.message_id = ids[5], "0" * 32
        row.save(force_insert=True)
        return found

    monkeypatch.setattr(export, "compare_batches", slow)
    before = tables()
    report = export_now(prune=2 * MONTH)
    assert "it got rows while it was compared" in report.problems[0]
    assert (left(), pruned()) == (ids, [0])
    assert tables() <= before


def test_a_row_that_comes_after_the_first_month_went_stops_the_deletion(
    partitioned: None,  # noqa: F811
    export_now: Export,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_rows(10, finished_at=month_ago(4))
    ids = make_rows(5, finished_at=month_ago(3))
    ArchivedMessage.objects.filter(pk=ids[2]).delete()
    export_now()
    drop = pruning.drop_month

    def slow(*arguments: Any) -> Any:
        """After the first month, a row of the second one appears."""
        found = drop(*arguments)
        if found:
            monkeypatch.setattr(pruning, "drop_month", drop)
            row = ArchivedMessage.objects.get(pk=ids[0])
            row.pk, row.message_id = ids[2], "0" * 32
            row.save(force_insert=True)
        return found

    monkeypatch.setattr(pruning, "drop_month", slow)
    report = export_now(prune=2 * MONTH)
    assert "it got rows while it was compared" in report.problems[0]
    assert (left(), pruned()) == (ids, [10])


def test_what_finished_today_after_months_waits_until_it_is_counted(
    partitioned: None,  # noqa: F811
    export_now: Export,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    today = (datetime.now(tz=zones.utc) - timedelta(hours=2)).replace(minute=0)

    class Noon(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return today.replace(hour=12)

    monkeypatch.setattr(pruning, "datetime", Noon)
    make_rows(5, finished_at=month_ago(4))
    ids = make_rows(3, finished_at=today.replace(hour=1), enqueued_at=month_ago(4))
    assert export_now(prune=3600).figures["pruned"] == 5
    assert left() == ids
    LakeBatch.objects.update(counted_at=today)
    assert export_now(prune=3600).figures["pruned"] == 3
