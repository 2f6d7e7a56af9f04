"""In a partitioned archive a month that is over is dropped, with all promises of a prune."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_delayq.archive import months
from django_delayq.archive import prune as prune_module
from django_delayq.archive.archive_rows import without_row
from django_delayq.archive.month_maker import MonthMaker
from django_delayq.archive.months import make_month, months_from, read_months
from django_delayq.archive.partitioning import partition_archive
from django_delayq.archive.prune import prune
from django_delayq.archive.retention import Retention
from django_delayq.management.sql_services import sql_services
from django_delayq.models import ArchivedMessage, LakeBatch, OperatorAction
from tests.app.sql_tasks import count
from tests.archive.test_partitioning import (
    execute,
    fields,
    in_postgresql,
    month_ago,
    plain,  # noqa: F401 - a fixture
)
from tests.archive.test_prune import ago, left
from tests.hands import Hands, rows, stored
from tests.killed import run_killed
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True), in_postgresql]

MONTH = timedelta(days=31)
DAYS = {"acked": timedelta(days=40), "dead": timedelta(days=3_000)}


@pytest.fixture
def partitioned(plain: None) -> Iterator[None]:  # noqa: F811 - a fixture
    """The last four months and the next ones have partitions of their own."""
    ahead = months.AHEAD
    partition_archive()
    there = read_months(connection)
    assert there is not None
    (history,) = (month for month in there.months if month.since is None)
    parent = months.table_of(connection)
    execute(f"ALTER TABLE {parent} DETACH PARTITION {history.table}", f"DROP TABLE {history.table}")
    with transaction.atomic(), connection.cursor() as cursor:
        for first, following in months_from(month_ago(4), 5):
            make_month(cursor, first, following, there.default)
    yield
    months.AHEAD = ahead


@pytest.fixture
def kept(settings: Any, hands: Hands) -> Hands:
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE_RETENTION": DAYS}
    return hands


def enqueued(months_ago: int, count: int = 1, **values: Any) -> list[int]:
    """Rows of messages that were enqueued in that month, and ended a minute later."""
    at = month_ago(months_ago)
    pks = dead(count, **{"finished_at": at + timedelta(minutes=1)} | values)
    for number, pk in enumerate(pks):
        ArchivedMessage.objects.filter(pk=pk).update(
            enqueued_at=stored(at + timedelta(seconds=number))
        )
    return pks


def tables() -> int:
    there = read_months(connection)
    assert there is not None
    return len(there.months)


def in_default() -> list[int]:
    there = read_months(connection)
    assert there is not None
    return [pk for (pk,) in execute(f"SELECT id FROM {there.default} ORDER BY id")]


def test_a_month_that_is_over_goes_with_its_table(partitioned: None) -> None:
    enqueued(4, 3, state="acked")
    young, before = enqueued(1, 2, state="acked", finished_at=ago(minutes=5)), tables()
    told: list[int] = []
    done = prune(2 * MONTH, progress=lambda so_far: told.append(so_far.count))
    assert (done.count, left(), told[:2]) == (3, young, [0, 3])
    assert tables() < before
    assert OperatorAction.objects.get().count == 3


def test_open_dead_letters_stay_as_they_are(partitioned: None) -> None:
    enqueued(4, 20, state="acked")
    open_ones = enqueued(4, 2)
    enqueued(4, 1, replayed_at=month_ago(3))
    before = [fields(row) for row in ArchivedMessage.objects.filter(pk__in=open_ones)]
    done = prune(2 * MONTH)
    assert (done.count, done.kept) == (21, 2)
    assert [fields(row) for row in rows()] == before
    assert in_default() == open_ones
    assert prune(2 * MONTH, state="dead").count == 2


def test_a_message_that_waited_for_months_stays_for_its_own_age(partitioned: None) -> None:
    enqueued(4, 5, state="acked")
    late = enqueued(4, 1, state="acked", finished_at=ago(days=1))
    assert prune(MONTH).count == 5
    assert left() == late


def test_a_month_of_which_many_rows_stay_is_pruned_row_by_row(
    partitioned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(months, "MOST_STAYING", 2)
    enqueued(4, 4, state="acked")
    open_ones, before = enqueued(4, 3), tables()
    assert (prune(2 * MONTH).count, left()) == (4, open_ones)
    assert tables() >= before - 3
    assert in_default() == []


def test_a_row_of_a_message_that_redis_still_has_stays(partitioned: None, hands: Hands) -> None:
    count.enqueue()
    (lease,) = hands.claim()
    hands.run(lease)
    enqueued(4, 3, state="acked")
    (row,) = ArchivedMessage.objects.filter(task=count.name)
    at = month_ago(4)
    ArchivedMessage.objects.filter(pk=row.pk).update(finished_at=stored(at))
    assert prune(2 * MONTH).count in (3, 4)


def test_a_dry_run_drops_nothing(partitioned: None) -> None:
    enqueued(4, 3, state="acked")
    before = tables()
    assert prune(2 * MONTH, dry_run=True).count == 3
    assert (tables(), len(left())) == (before, 3)


def test_retention_leaves_rows_to_go_with_their_month(partitioned: None, kept: Hands) -> None:
    enqueued(3, 3, state="acked")
    letters = enqueued(3, 2)
    recent = enqueued(0, 1, state="acked", finished_at=ago(days=41))
    service = Retention(kept.store)
    service.run_once()
    assert left() == [*letters, *recent]
    assert service.figures == {"deleted": 3}
    action = OperatorAction.objects.get()
    assert (action.count, action.finished_at is not None) == (3, True)
    kept.store.workers.release_lock("retention")
    service.run_once()
    assert OperatorAction.objects.count() == 1


def test_a_command_can_leave_them_too(partitioned: None) -> None:
    recent = enqueued(0, 2, state="acked", finished_at=ago(days=41))
    assert prune(timedelta(days=40), whole_months=True).count == 0
    assert left() == recent
    assert prune(timedelta(days=40)).count == 2


def test_what_no_lake_has_yet_stays(partitioned: None, kept: Hands) -> None:
    gone = enqueued(3, 3, state="acked")
    waiting = enqueued(3, 2, state="acked")
    LakeBatch.objects.create(table_id=UUID(int=1), lo=0, hi=gone[-1], version=1, rows=3)
    Retention(kept.store).run_once()
    assert left() == waiting


def test_killed_before_the_commit_the_month_is_whole(partitioned: None, hands: Hands) -> None:
    enqueued(4, 5, state="acked")
    before = tables()
    run_killed(
        "from datetime import timedelta\n"
        "from django_delayq.archive.prune import prune\n"
        "from django_delayq.models import OperatorAction\n"
        "killing(OperatorAction, 'add', 1)\n"
        "prune(timedelta(days=62))\n"
    )
    assert (len(left()), tables()) == (5, before)
    assert OperatorAction.objects.get().count == 0
    assert prune(2 * MONTH).count == 5


def test_while_others_hold_the_month_its_rows_are_deleted(
    partitioned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(months, "TRIES", 1)
    monkeypatch.setattr(months, "LOCK_MS", 20)
    enqueued(4, 3, state="acked")
    before, other = tables(), connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {months.table_of(connection)}")
        assert prune(2 * MONTH).count == 3
        assert (left(), tables()) == ([], before)
    finally:
        other.close()


def test_a_row_that_comes_for_the_month_meanwhile_is_not_lost(
    partitioned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    enqueued(4, 3, state="acked")
    drop, late = prune_module.drop_month, []

    def dropped(*args: Any) -> Any:
        def write() -> None:
            late.extend(enqueued(4, 1, state="acked", finished_at=ago(minutes=1)))
            connection.close()

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        return drop(*args)

    monkeypatch.setattr(prune_module, "drop_month", dropped)
    assert prune(2 * MONTH).count == 3
    assert left() == late != []


def test_exactly_once_looks_into_the_months_of_its_messages_only(
    partitioned: None, hands: Hands
) -> None:
    count.enqueue_many([()] * 3)
    leases = hands.claim()
    with CaptureQueriesContext(connection) as queries:
        assert len(without_row(leases)) == 3
    (query,) = queries
    plan = "".join(line for (line,) in execute(f"EXPLAIN {query['sql']}"))
    there = read_months(connection)
    assert there is not None
    names = [month.table for month in there.months]
    assert 1 <= sum(f" {name} " in plan for name in names) <= 2 < len(names)
    hands.run(*leases)
    assert list(without_row(leases)) == []


def test_workers_make_the_months_that_come(partitioned: None, hands: Hands) -> None:
    before = tables()
    months.AHEAD = 4
    service = MonthMaker(hands.store)
    assert service.run_once() == service.interval
    assert tables() == before + service.made > before
    service.run_once()
    assert tables() == before + service.made
    assert "month maker" in [one.name for one in sql_services(hands.store, "x")]


def test_a_role_that_does_not_own_the_table_says_what_to_do(
    partitioned: None, hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    months.AHEAD = 4
    execute(
        "DROP ROLE IF EXISTS delayq_worker",
        "CREATE ROLE delayq_worker LOGIN",
        "GRANT CREATE ON SCHEMA public TO delayq_worker",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO delayq_worker",
    )
    user = connection.settings_dict["USER"]
    try:
        connection.close()
        connection.settings_dict["USER"] = "delayq_worker"
        with caplog.at_level(logging.WARNING, "delayq.worker"):
            MonthMaker(hands.store).run_once()
        assert "run manage.py delayq partition-archive as the owner" in caplog.text
    finally:
        connection.close()
        connection.settings_dict["USER"] = user
        execute("DROP OWNED BY delayq_worker", "DROP ROLE delayq_worker")
