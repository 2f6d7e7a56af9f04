"""The archive keeps what ARCHIVE_RETENTION says, and prunes the rest by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from django_delayq.archive import retention as module
from django_delayq.archive.retention import Retention
from django_delayq.core.conf import RETAINED_STATES, parse_settings
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.management.sql_services import sql_services
from django_delayq.models import ArchivedMessage, Final, LakeBatch, OperatorAction
from tests.app.sql_tasks import count
from tests.archive.test_prune import ago, left
from tests.hands import DAY, Hands
from tests.killed import run_killed
from tests.operators.test_replay import dead

#: It is killed while its second transaction is open.
KILLED = """
from django_delayq.archive import retention
from django_delayq.models import OperatorAction
from django_delayq.store import get_store

retention.BATCH = 3
killing(OperatorAction, "add", 2)
retention.Retention(get_store()).run_once()
"""

DAYS = {"acked": timedelta(days=30), "dead": timedelta(days=90)}


@pytest.fixture
def kept(settings: Any, hands: Hands) -> Hands:
    """Acked rows are kept for 30 days, dead ones for 90, others for ever."""
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE_RETENTION": DAYS}
    return hands


def test_each_state_goes_at_its_own_age_and_others_stay(kept: Hands) -> None:
    dead(2, state="acked", finished_at=ago(days=31))
    dead(3, finished_at=ago(days=91))
    young = [
        *dead(state="acked", finished_at=ago(days=29)),
        *dead(finished_at=ago(days=89)),
        *dead(state="expired", finished_at=ago(days=900)),
    ]
    service = Retention(kept.store)
    assert service.run_once() == module.INTERVAL
    assert left() == young
    assert service.figures == {"deleted": 5}


def test_what_it_deletes_is_recorded_as_a_prune(kept: Hands) -> None:
    dead(2, state="acked", finished_at=ago(days=31))
    Retention(kept.store).run_once()
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.count) == (
        "prune",
        'DELAYQ["ARCHIVE_RETENTION"]',
        2,
    )
    assert action.finished_at is not None and action.selection.startswith("acked")


def test_nothing_to_delete_leaves_no_record(kept: Hands) -> None:
    dead(state="acked", finished_at=ago(days=1))
    Retention(kept.store).run_once()
    assert not OperatorAction.objects.exists()


def test_rows_that_keep_a_message_from_running_twice_stay(kept: Hands) -> None:
    count.enqueue("once")
    (lease,) = kept.claim()
    kept.executor.run(lease)  # and the worker dies before it settles
    ArchivedMessage.objects.update(finished_at=ago(days=400))
    Retention(kept.store).run_once()
    assert len(left()) == 1
    assert not OperatorAction.objects.exists()


def test_only_one_process_prunes_at_a_time(kept: Hands) -> None:
    first, second = Retention(kept.store), Retention(kept.store)
    first.run_once()
    dead(state="acked", finished_at=ago(days=31))
    assert second.run_once() == module.INTERVAL
    assert len(left()) == 1


def test_it_stops_between_two_batches_and_another_process_goes_on(
    kept: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BATCH", 2)
    dead(6, state="acked", finished_at=ago(days=31))
    asked: list[int] = []

    def tasks_run() -> bool:
        asked.append(1)
        if len(asked) == 2:  # before the first transaction, and after it
            service.stop()
        return True

    service = Retention(kept.store, tasks_run=tasks_run)
    service.run_once()
    assert len(left()) == 4
    assert OperatorAction.objects.get().count == 2
    Retention(kept.store).run_once()
    assert left() == []


def test_the_service_is_there_only_when_the_setting_is(kept: Hands, settings: Any) -> None:
    def names() -> list[str]:
        return [service.name for service in sql_services(kept.store, "host:1:a")]

    assert "retention" in names()
    settings.DELAYQ = {**settings.DELAYQ, "ARCHIVE_RETENTION": {}}
    assert "retention" not in names()


def test_the_states_are_those_of_the_archive() -> None:
    assert sorted(RETAINED_STATES) == sorted(Final.values)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "must be a dict"),
        ({"done": 86_400}, "has no state 'done': use one of acked"),
        ({"acked": 60}, "at least 1 hour"),
        ({"acked": "30d"}, "must be a timedelta or a number of seconds"),
    ],
)
def test_a_wrong_setting_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        parse_settings({"ARCHIVE_RETENTION": value})


def test_rows_that_a_lake_has_not_taken_yet_stay(kept: Hands) -> None:
    pks = dead(4, state="acked", finished_at=ago(days=31))
    LakeBatch.objects.create(table_id=UUID(int=1), lo=0, hi=pks[0], version=1)
    LakeBatch.objects.create(table_id=UUID(int=2), lo=0, hi=pks[1], version=1)
    LakeBatch.objects.create(table_id=UUID(int=2), lo=pks[1], hi=pks[3])
    Retention(kept.store).run_once()
    assert left() == pks[2:]
    LakeBatch.objects.filter(version=None).update(version=2)
    kept.store.workers.release_lock("retention")
    Retention(kept.store).run_once()
    assert left() == []


@pytest.mark.databases
def test_killed_in_the_middle_of_a_transaction_it_loses_nothing_and_another_goes_on(
    kept: Hands,
) -> None:
    old = dead(10, state="acked", finished_at=ago(days=31))
    young = dead(2, state="acked", finished_at=ago(days=1))
    run_killed(KILLED, ARCHIVE_RETENTION={"acked": 30 * DAY})
    assert left() == [*old[3:], *young], "the transaction that was open is undone"
    first = OperatorAction.objects.get()
    assert (first.count, first.finished_at) == (3, None)
    service = Retention(kept.store)
    assert service.run_once() == module.INTERVAL
    assert left() == [*old[3:], *young], "the lock of the dead process ends by itself"
    kept.store.workers.release_lock(service.name)
    service.run_once()
    assert left() == young
    assert sorted(OperatorAction.objects.values_list("count", flat=True)) == [3, 7]
