"""Finished messages move to SQL: each once, none lost, whatever fails in between."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from django.db import connection

from django_delayq.archive import archiver as module
from django_delayq.archive.archiver import Archiver, store_entries
from django_delayq.core.exceptions import ArchiveUnavailable, DelayQError
from django_delayq.models import ArchivedMessage, UnarchivableEntry
from django_delayq.store import finished, get_store
from django_delayq.store.finished import FinishedStream
from django_delayq.store.keys import Partition
from tests.app.tasks import crowd, record
from tests.database_faults import database_away, failing_commits
from tests.hands import (
    DEFAULT,
    ORDERS,
    Hands,
    lose_redis,
    put_entry,
    rows,
    statuses,
    stored_record,
    together,
)

pytestmark = pytest.mark.databases

STAMP_US = 1_763_632_200_000_000


def finish(hands: Hands, count: int, **options: Any) -> None:
    """So many messages end."""
    record.using(**options).enqueue_many((number,) for number in range(count))
    hands.work()


def test_a_batch_is_one_row_each(hands: Hands) -> None:
    finish(hands, 30)
    hands.archiver.run_once()
    assert sorted(row.body for row in rows()) == sorted(
        f'{{"args":[{n}],"kwargs":{{}}}}' for n in range(30)
    )
    assert hands.left() == {DEFAULT: 0}
    assert hands.archiver.figures == {"archived": 30, "waiting": 0, "lagging": False}


def test_a_backlog_is_archived_in_one_round(hands: Hands) -> None:
    finish(hands, 500)
    finish(hands, 20)
    hands.archiver.run_once()
    assert (len(rows()), hands.archiver.waiting, hands.left()) == (520, 0, {DEFAULT: 0})


def test_of_a_long_backlog_a_round_takes_so_many_transactions(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    monkeypatch.setattr(module, "BATCHES", 2)
    monkeypatch.setattr(module, "ROUND", 2)
    finish(hands, 60)
    assert hands.archiver.run_once() == 0.0
    assert (len(rows()), hands.archiver.waiting) == (30, 30)
    hands.archiver.run_once()
    assert (len(rows()), hands.left()) == (60, {DEFAULT: 0})


def test_several_batches_of_a_backlog_are_one_transaction(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    finish(hands, 100)
    sizes: list[int] = []

    def noted(entries: Any, *args: Any, **options: Any) -> Any:
        sizes.append(len(entries))
        return store_entries(entries, *args, **options)

    monkeypatch.setattr(module, "store_entries", noted)
    hands.archive()
    assert sizes == [10, 40, 40, 10]


@pytest.mark.parametrize("damage", [{"at": 10**15}, {"detail": b'{"started_ms":1e300}'}])
def test_a_bad_entry_in_a_backlog_is_put_aside_alone(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any]
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    finish(hands, 25)
    put_entry(hands.store, DEFAULT, record=stored_record(STAMP_US, b"[1]"), **damage)
    finish(hands, 25)
    hands.archive()
    assert (len(rows()), UnarchivableEntry.objects.count()) == (50, 1)
    assert hands.left() == {DEFAULT: 0}


def test_a_redis_that_is_away_in_a_backlog_makes_no_row_twice(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 0)
    finish(hands, 50)
    with monkeypatch.context() as patch:
        patch.setattr(hands.store, "trim_finished", lambda *_: (_ for _ in ()).throw(DelayQError()))
        with pytest.raises(DelayQError):
            hands.archiver.run_once()
    assert hands.left() == {DEFAULT: 50}
    hands.archive()
    assert (len(rows()), hands.left()) == (50, {DEFAULT: 0})


def test_while_tasks_run_a_round_takes_one_batch(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    finish(hands, 50)
    busy = Archiver(hands.store, "busy", tasks_run=lambda: True)
    assert busy.run_once() > 0.0
    assert len(rows()) == 10


def test_a_database_that_goes_away_in_a_backlog_loses_nothing(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 0)
    monkeypatch.setattr(module, "BATCHES", 1)
    finish(hands, 50)
    with failing_commits(1, after=2), pytest.raises(ArchiveUnavailable):
        hands.archiver.run_once()
    assert (len(rows()), hands.left()) == (20, {DEFAULT: 30})
    hands.archive()
    assert (len(rows()), hands.left()) == (50, {DEFAULT: 0})


def test_a_database_that_is_away_for_long_leaves_no_backlog_to_be_taken_over(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 60_000)
    monkeypatch.setattr(module, "BATCHES", 1)
    finish(hands, 100)
    with database_away():
        for _ in range(8):
            with pytest.raises(ArchiveUnavailable):
                hands.archiver.run_once()
    for _ in range(9):
        hands.archiver._began_at = 0.0
        hands.archiver.run_once()
    assert len(rows()) == 90  # the last 10 were read ahead when the database went away


def test_all_that_a_dead_archiver_has_left_is_taken_over_without_a_rest(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "BATCH", 10)
    monkeypatch.setattr(module, "TAKE_OVER_INTERVAL", 60.0)
    finish(hands, 60)
    assert len(FinishedStream(hands.store, DEFAULT, "dead").read(6)) == 60
    for _ in range(6):
        hands.archiver._began_at = 0.0
        hands.archiver.run_once()
    assert (len(rows()), hands.left()) == (60, {DEFAULT: 0})


def test_a_crash_between_commit_and_removal_makes_no_second_row(hands: Hands) -> None:
    finish(hands, 3, durable=True)
    stream = FinishedStream(hands.store, DEFAULT, "killed")
    entries = stream.read()
    store_entries(entries)
    assert hands.left() == {DEFAULT: 3}
    before = ArchivedMessage.objects.values_list("id", flat=True)
    kept = list(before)
    hands.archive()
    assert (list(before.all()), hands.left()) == (kept, {DEFAULT: 0})


def test_nothing_leaves_the_stream_before_the_commit(hands: Hands) -> None:
    finish(hands, 3, durable=True)
    with failing_commits(1) as failed, pytest.raises(ArchiveUnavailable):
        hands.archiver.run_once()
    assert failed
    assert (rows(), hands.left(), len(statuses())) == ([], {DEFAULT: 3}, 3)
    hands.archive()
    assert (len(rows()), statuses()) == (3, [])


def test_a_database_that_is_away_is_waited_for(
    hands: Hands, caplog: pytest.LogCaptureFixture
) -> None:
    finish(hands, 3)
    with caplog.at_level(logging.WARNING), database_away():
        for _ in range(5):
            with pytest.raises(ArchiveUnavailable):
                hands.archiver.run_once()
        assert hands.archiver.lagging
        assert not hands.archiver.has_work
    assert hands.left() == {DEFAULT: 3}
    with caplog.at_level(logging.WARNING):
        hands.archiver.run_once()
    assert (len(rows()), hands.archiver.lagging) == (3, False)
    said = [record.getMessage() for record in caplog.records if record.name == "delayq.worker"]
    assert [text.partition(":")[0].partition(" after")[0] for text in said] == [
        "the archive waits, nothing is lost",
        "the archive goes on",
    ]


def test_a_database_that_is_away_makes_nobody_unarchivable(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0)
    finish(hands, 3)
    with database_away():
        for _ in range(5):
            with pytest.raises(ArchiveUnavailable) as caught:
                hands.archiver.run_once()
    if connection.vendor != "sqlite":  # a locked file answers
        assert not caught.value.answers
    hands.archive()
    assert (len(rows()), UnarchivableEntry.objects.count()) == (3, 0)


def test_a_redis_that_is_away_after_the_commit_is_told_later(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(hands, 3)
    with monkeypatch.context() as patch:
        patch.setattr(hands.store, "trim_finished", lambda *_: (_ for _ in ()).throw(DelayQError()))
        with pytest.raises(DelayQError):
            hands.archiver.run_once()
    assert len(rows()) == 3
    hands.archive()
    assert (len(rows()), hands.left()) == (3, {DEFAULT: 0})


def test_a_dead_archivers_entries_are_taken_over(hands: Hands) -> None:
    finish(hands, 3)
    assert len(FinishedStream(hands.store, DEFAULT, "dead").read()) == 3
    hands.archiver.run_once()
    assert (len(rows()), hands.left()) == (3, {DEFAULT: 0})


def test_a_living_archivers_entries_are_left_to_it(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 60_000)
    finish(hands, 3)
    FinishedStream(hands.store, DEFAULT, "slow").read()
    assert hands.archiver.run_once() == module.TAKE_OVER_INTERVAL
    assert rows() == []


def test_a_dead_archivers_entries_are_taken_over_in_a_busy_topic(hands: Hands) -> None:
    finish(hands, 3)
    FinishedStream(hands.store, DEFAULT, "dead").read()
    for _ in range(5):
        finish(hands, 1)
        hands.archiver.run_once()
    assert len(rows()) == 8


def test_long_gone_archivers_are_forgotten(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    finish(hands, 1)
    FinishedStream(hands.store, DEFAULT, "gone").read()
    hands.archive()
    monkeypatch.setattr(finished, "FORGET_AFTER_MS", -1)
    FinishedStream(hands.store, DEFAULT, "new").take_over()
    key = finished.finished_key(hands.store.client.prefix, DEFAULT)
    names = [
        consumer["name"]
        for consumer in hands.store.client.redis.xinfo_consumers(key, finished.GROUP)
    ]
    assert b"gone" not in names


def test_two_archivers_at_once_make_one_row_each(hands: Hands) -> None:
    for number in range(4):
        record.using(durable=True).enqueue_many((n,) for n in range(100))
        crowd.using(durable=True).enqueue_many((n,) for n in range(100))
        hands.work()
        hands.work(Partition("crowd", 0))
        others = [Archiver(hands.store, f"archiver {i}") for i in range(2)]
        together(*(lambda a=a: [_once(a) for _ in range(6)] for a in others))
        hands.archive()
        assert (len(rows()), statuses()) == (200 * (number + 1), [])


@pytest.mark.parametrize("durable", [False, True])
def test_archivers_side_by_side_share_a_backlog_without_a_deadlock(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    monkeypatch.setattr(finished, "TAKE_OVER_AFTER_MS", 60_000)
    monkeypatch.setattr(finished, "BATCH", 60)
    monkeypatch.setattr(module, "BATCHES", 1)
    for _ in range(2):
        record.using(durable=durable).enqueue_many((n,) for n in range(200))
        crowd.using(durable=durable).enqueue_many((n,) for n in range(200))
        hands.work()
        hands.work(Partition("crowd", 0))
    others = [Archiver(hands.store, f"archiver {i}") for i in range(2)]

    def archive(archiver: Archiver) -> None:
        while any(hands.left().values()):
            archiver.run_once()  # an error fails the test: nothing is tried again

    together(*(lambda a=a: archive(a) for a in others))
    assert (len(rows()), statuses()) == (800, [])
    assert sum(a.archived for a in others) == 800
    assert all(a.archived for a in others)


def _once(archiver: Archiver) -> None:
    try:
        archiver.run_once()
    except ArchiveUnavailable as error:  # a deadlock or a lock: it is tried again
        assert error.answers, error


def test_the_same_entries_twice_at_once_make_one_row_each(hands: Hands) -> None:
    finish(hands, 200, durable=True)
    entries = FinishedStream(hands.store, DEFAULT, "one").read()
    together(lambda: store_entries(entries), lambda: store_entries(list(reversed(entries))))
    assert (len(rows()), statuses()) == (200, [])


def test_a_full_stream_pauses_claims_until_it_is_archived(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "FINISHED_LIMIT": 500}
    hands = Hands(get_store())
    finish(hands, 500)
    record.enqueue("waits")
    assert hands.store.claim(DEFAULT, 10).unarchived
    hands.archive()
    assert len(hands.claim()) == 1


def test_every_partition_of_every_topic_is_served(hands: Hands, settings: Any) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "TOPICS": {"crowd": {"partitions": 4}}}
    hands = Hands(get_store())
    crowd.enqueue_many((number,) for number in range(40))
    record.enqueue("one more")
    for number in range(4):
        hands.work(Partition("crowd", number))
    hands.work()
    hands.archiver.run_once()
    assert len(rows()) == 41
    assert {row.partition for row in rows() if row.topic == "crowd"} == {0, 1, 2, 3}


def test_a_topic_that_this_process_does_not_know_is_archived(hands: Hands) -> None:
    put_entry(
        hands.store, Partition("of-another-process", 0), record=stored_record(STAMP_US, b"[1]")
    )
    assert [row.topic for row in hands.archive()] == ["of-another-process"]


def test_a_lost_stream_is_begun_anew(hands: Hands) -> None:
    finish(hands, 1)
    hands.archive()
    hands.store.client.redis.delete(finished.finished_key(hands.store.client.prefix, DEFAULT))
    finish(hands, 1)
    hands.archiver.run_once()
    hands.archive()
    assert len(rows()) == 2


def test_entries_held_while_the_database_was_away_outlive_a_flush(hands: Hands) -> None:
    finish(hands, 2)
    with database_away(), pytest.raises(ArchiveUnavailable):
        hands.archiver.run_once()
    lose_redis(hands.store)
    hands.archiver.run_once()
    assert len(rows()) == 2


# Pace


@pytest.mark.parametrize(
    ("archived", "size", "busy", "expected"),
    [
        (0, 0, False, 15.0),
        (0, 3, False, 5.0),
        (3, 3, True, 0.2),
        (500, 900, False, 0.0),
        (500, 100_001, True, 0.0),
    ],
    ids=["nothing", "others have it", "all of it", "more, idle", "crowded"],
)
def test_pace(store: Any, archived: int, size: int, busy: bool, expected: float) -> None:
    archiver = Archiver(store, "x", tasks_run=lambda: busy)
    assert archiver._pause(archived, size) == expected


def test_beside_busy_tasks_it_rests_four_times_as_long_as_it_worked(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver = Archiver(store, "x", tasks_run=lambda: True)
    archiver._began_at = 100.0
    monkeypatch.setattr("django_delayq.archive.archiver.time.monotonic", lambda: 100.5)
    assert archiver._pause(500, 900) == pytest.approx(2.0)


def test_two_looks_are_apart(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GATHER", 60.0)
    finish(hands, 1)
    hands.archiver._began_at = module.time.monotonic()
    assert 59 < hands.archiver.run_once() <= 60
    assert rows() == []


def test_it_says_when_there_is_work(hands: Hands) -> None:
    hands.archiver.run_once()
    assert not hands.archiver.has_work
    hands.archiver.messages_ended()
    assert hands.archiver.has_work


def test_partitions_of_a_topic_that_is_new_are_found(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(hands, 1)
    hands.archiver.run_once()
    monkeypatch.setattr(module, "PARTITIONS_REFRESH", -1.0)
    put_entry(hands.store, ORDERS, record=stored_record(STAMP_US, b"[1]"))
    hands.archiver.run_once()
    assert {row.topic for row in rows()} == {"default", "orders"}
