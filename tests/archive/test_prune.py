"""Pruning: old rows of the archive go in small steps, open dead letters only when they are
named."""

from __future__ import annotations

import getpass
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from django_delayq.archive import prune as module
from django_delayq.archive.prune import Pruned, prune
from django_delayq.core.exceptions import InvalidMessage
from django_delayq.models import ArchivedMessage, OperatorAction, UnarchivableEntry
from django_delayq.store.lease import Lease
from tests.app.models import Counter
from tests.app.sql_tasks import count
from tests.faults import unreachable
from tests.hands import Hands, end_lease, stored
from tests.operators.test_replay import LONG_AGO, dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

WEEK = timedelta(weeks=1)


def ago(**length: float) -> datetime:
    return datetime.now(timezone.utc) - timedelta(**length)


def left() -> list[int]:
    return list(ArchivedMessage.objects.order_by("pk").values_list("pk", flat=True))


def test_what_finished_longer_ago_goes() -> None:
    for state in ("acked", "cancelled", "expired"):
        dead(2, state=state, finished_at=ago(days=8))
    young = dead(state="acked", finished_at=ago(days=6))
    done = prune(WEEK)
    assert (done.count, done.kept, left()) == (6, 0, young)


def test_open_dead_letters_go_only_when_they_are_named() -> None:
    dead(replayed_at=LONG_AGO)
    dead(discarded_at=LONG_AGO)
    open_ones = dead(2)
    done = prune(WEEK)
    assert (done.count, done.kept, left()) == (2, 2, open_ones)
    assert prune(WEEK, state="dead").count == 2
    assert left() == []


def test_only_one_state_goes() -> None:
    dead(state="acked")
    others = [*dead(state="expired"), *dead(replayed_at=LONG_AGO)]
    assert prune(WEEK, state="acked").count == 1
    assert left() == others


def test_many_rows_of_one_instant_and_kept_ones_among_them_are_all_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAGE", 7)
    kept = dead(20)
    dead(20, state="acked")
    kept += dead(20, finished_at=LONG_AGO + timedelta(days=1))
    dead(20, state="acked", finished_at=LONG_AGO - timedelta(days=1))  # archived late
    done = prune(WEEK, batch=3)
    assert (done.count, done.kept, left()) == (40, 40, kept)


def test_each_transaction_deletes_a_batch_and_records_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dead(25, state="acked")
    told: list[tuple[int, int]] = []

    def interrupt(pruned: Pruned) -> None:
        told.append((pruned.count, OperatorAction.objects.get().count))
        if pruned.count == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(WEEK, batch=10, progress=interrupt)
    assert told == [(0, 0), (10, 10), (20, 20)]
    assert len(left()) == 5
    assert OperatorAction.objects.get().finished_at is None


def test_no_query_counts_and_none_reads_more_than_a_page() -> None:
    dead(30, state="acked")
    with CaptureQueriesContext(
        connection,
    ) as queries:
        prune(WEEK)
    for query in queries.captured_queries:
        assert "COUNT(" not in query["sql"]
        bounded = (
            "LIMIT" in query["sql"]
            or " IN (" in query["sql"]
            or UnarchivableEntry._meta.db_table in query["sql"]
        )
        assert not query["sql"].startswith("SELECT") or bounded


def test_a_dry_run_deletes_nothing_and_leaves_no_record() -> None:
    dead(3, state="acked")
    dead()
    done = prune(WEEK, dry_run=True)
    assert (done.count, done.kept, done.action) == (3, 1, None)
    assert len(left()) == 4
    assert not OperatorAction.objects.exists()


def test_the_record_says_who_and_what() -> None:
    dead(3, state="acked")
    done = prune(WEEK, state="acked", by="ada" * 100)
    action = OperatorAction.objects.get()
    assert action == done.action
    assert (action.action, action.operator, action.count) == ("prune", ("ada" * 100)[:150], 3)
    assert action.selection == "acked, finished more than 7 d ago"
    assert action.before is not None
    assert abs(stored(ago(weeks=1)) - action.before) < timedelta(minutes=1)
    assert action.finished_at is not None


@pytest.mark.parametrize(
    ("older_than", "options", "words"),
    [
        (timedelta(minutes=59), {}, "at least 1 hour"),
        (0, {}, "at least 1 hour"),
        (-5, {}, "older_than must be zero or more"),
        ("30d", {}, "older_than must be a timedelta"),
        (WEEK, {"state": "done"}, "use one of acked, dead, cancelled, expired"),
        (WEEK, {"batch": 0}, "batch is a whole number"),
        (WEEK, {"batch": 10_001}, "batch is a whole number"),
    ],
)
def test_wrong_requests_are_refused(older_than: Any, options: Any, words: str) -> None:
    dead(state="acked")
    with pytest.raises(InvalidMessage, match=words):
        prune(older_than, **options)
    assert len(left()) == 1
    assert not OperatorAction.objects.exists()


def test_an_hour_is_enough() -> None:
    dead(state="acked", finished_at=ago(minutes=61))
    (young,) = dead(state="acked", finished_at=ago(minutes=59))
    assert prune(3600).count == 1
    assert left() == [young]


# The command


def run(*args: str) -> str:
    out = StringIO()
    call_command("delayq", "prune", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_the_command_says_what_went_and_what_stayed() -> None:
    dead(1_500, state="acked")
    dead(2)
    assert run("--older-than", "30d", "--state", "cancelled") == "deleted 0 rows\n"
    dry = run("--older-than", "30d", "--dry-run")
    assert (
        dry
        == "would have deleted 1,500 rows; kept 2 open dead letters (they go with --state dead)\n"
    )
    assert run("--older-than", "30d").startswith("deleted 1,500 rows; kept 2")
    assert run("--older-than", "4w", "--state", "dead", "--by", "ada") == "deleted 2 rows\n"
    assert left() == []
    operators = OperatorAction.objects.order_by("pk").values_list("operator", flat=True)
    assert list(operators) == [getpass.getuser(), getpass.getuser(), "ada"]


@pytest.mark.parametrize(
    "args", [[], ["--older-than", "30"], ["--older-than", "1d", "--state", "gone"]]
)
def test_the_command_refuses_wrong_options(args: list[str]) -> None:
    with pytest.raises(CommandError):
        run(*args)


def test_too_young_ends_with_2() -> None:
    with pytest.raises(CommandError, match="at least 1 hour") as caught:
        run("--older-than", "90s")
    assert caught.value.returncode == 2


def test_ctrl_c_says_how_many_went_and_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    dead(1_001, state="acked")
    from django_delayq.management.cli import Reporter

    def interrupt(self: Reporter, text: str, done: int, total: int) -> None:
        if "1,000" in text:
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "show", interrupt)
    err = StringIO()
    with pytest.raises(SystemExit) as caught:
        call_command("delayq", "prune", "--older-than", "1h", stderr=err)
    assert caught.value.code == 130
    assert err.getvalue() == "Interrupted: deleted 1,000 rows. Run it again to go on.\n"
    assert len(left()) == 1


def test_a_database_that_fails_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_delayq.management.verbs import prune as verb

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise DatabaseError("gone")

    monkeypatch.setattr(verb, "prune", fail)
    with pytest.raises(CommandError, match="The database failed: DatabaseError: gone") as caught:
        run("--older-than", "1h")
    assert caught.value.returncode == 1


# What keeps a message from running twice


def ran_and_died(hands: Hands) -> Lease:
    """An exactly_once task has run and is in the archive, two hours ago; its worker died before it
    could say so."""
    count.enqueue()
    (lease,) = hands.claim()
    hands.executor.run(lease)
    ArchivedMessage.objects.update(finished_at=ago(hours=2))
    return lease


def test_the_row_of_a_message_that_may_be_delivered_again_stays(hands: Hands) -> None:
    lease = ran_and_died(hands)
    done = prune(3600)
    assert (done.count, done.needed, len(left())) == (0, 1, 1)
    end_lease(hands.store, lease)
    hands.work()
    assert Counter.objects.get().value == 1


def test_while_redis_is_away_no_row_of_an_exactly_once_task_goes(hands: Hands) -> None:
    ran_and_died(hands)
    dead(2, state="acked", finished_at=ago(hours=2))
    with unreachable():
        done = prune(3600)
    assert (done.count, done.needed, len(left())) == (2, 1, 1)


def test_the_row_of_another_life_of_a_key_goes(hands: Hands) -> None:
    count.using(key="k").enqueue()
    hands.work()
    hands.archive()
    ArchivedMessage.objects.update(finished_at=ago(hours=2))
    count.using(key="k", delay=60).enqueue()
    assert prune(3600).count == 1


def test_entries_aside_go_by_the_same_rules(hands: Hands) -> None:
    for number, state in enumerate(("acked", "dead", "cancelled")):
        UnarchivableEntry.objects.create(
            entry=f"{number}-0", topic="orders", partition=0, state=state, content="{}"
        )
    assert prune(WEEK).count == 0
    UnarchivableEntry.objects.update(created_at=ago(days=8))
    done = prune(WEEK)
    assert (done.count, done.kept) == (2, 1)
    assert prune(WEEK, state="dead").count == 1
    assert UnarchivableEntry.objects.count() == 0
