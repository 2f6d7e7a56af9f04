"""What the database refuses is put aside, alone, and only when it is itself to blame."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from django.db import IntegrityError, InternalError, OperationalError, connection

from django_delayq.archive import archiver as module
from django_delayq.archive.archiver import store_entries
from django_delayq.archive.unarchivable import archive_again, kept
from django_delayq.core.database import may_pass
from django_delayq.core.exceptions import ArchiveUnavailable
from django_delayq.models import ArchivedMessage, OperatorAction, OutboxMessage, UnarchivableEntry
from django_delayq.operators.replay import replay
from django_delayq.stats.hourly import utc
from django_delayq.store.finished import FinishedStream
from tests.app.sql_tasks import fail
from tests.app.tasks import record
from tests.archive.test_archiver import STAMP_US, finish
from tests.database_faults import (
    ARCHIVE,
    archive_locked,
    failing_commits,
    refusing_bad_rows,
    without_column,
    without_table,
)
from tests.hands import DEFAULT, Hands, only_row, put_entry, rows, statuses, stored_record, together

pytestmark = pytest.mark.databases


def test_a_bad_row_is_put_aside_and_blocks_nobody(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = record.using(durable=True).enqueue_many((number,) for number in range(20))
    bad = record.using(durable=True, key="wrong").enqueue("the bad one")
    hands.work()
    monkeypatch.setattr(module, "PATIENCE", 0)
    with refusing_bad_rows():
        hands.archive()
    assert {row.message_id.hex for row in rows()} == {handle.id for handle in good}
    aside = UnarchivableEntry.objects.get()
    assert (aside.message_id, aside.topic, aside.partition, aside.state) == (
        bad.id,
        "default",
        0,
        "acked",
    )
    assert "not this one" in aside.error
    assert (statuses(), hands.left()) == ([], {DEFAULT: 0})


def test_what_is_put_aside_holds_the_whole_message(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue("the bad one")
    (lease,) = hands.claim()
    hands.run(lease)
    monkeypatch.setattr(module, "PATIENCE", 0)
    with refusing_bad_rows():
        hands.archive()
    entry, _ = kept(UnarchivableEntry.objects.get())
    assert (entry.id, entry.record, entry.attempts) == (lease.id, lease.record, lease.entry)
    assert json.loads(entry.detail)["worker"] == "host:1:hands"


def test_a_bad_row_that_is_put_aside_twice_is_there_once(hands: Hands) -> None:
    record.using(key="wrong").enqueue()
    hands.work()
    entries = FinishedStream(hands.store, DEFAULT, "killed").read()
    with refusing_bad_rows():
        store_entries(entries, True)
        store_entries(entries, True)
    assert UnarchivableEntry.objects.count() == 1


def test_an_operational_error_is_tried_again_before_anybody_is_to_blame(hands: Hands) -> None:
    finish(hands, 2)
    with failing_commits(module.PATIENCE):
        for _ in range(module.PATIENCE):
            with pytest.raises(ArchiveUnavailable):
                hands.archiver.run_once()
    hands.archive()
    assert (len(rows()), UnarchivableEntry.objects.count()) == (2, 0)


@pytest.mark.parametrize("missing", ["archive", "column", "outbox"])
def test_a_missing_migration_makes_nobody_unarchivable(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    finish(hands, 3, durable=True)
    monkeypatch.setattr(module, "PATIENCE", 1)
    hole = {
        "archive": lambda: without_table(ArchivedMessage),
        "outbox": lambda: without_table(OutboxMessage),
        "column": lambda: without_column(ARCHIVE, "reason"),
    }[missing]
    with hole():
        for _ in range(4):
            with pytest.raises(ArchiveUnavailable):
                hands.archiver.run_once()
    assert (UnarchivableEntry.objects.count(), hands.left()) == (0, {DEFAULT: 3})
    hands.archive()
    assert (len(rows()), statuses()) == (3, [])


@pytest.mark.parametrize("damage", ["stamp", "due"])
def test_damage_that_is_no_database_error_blocks_nobody(hands: Hands, damage: str) -> None:
    good = record.using(durable=True).enqueue("good")
    hands.work()
    fields: dict[str, Any] = {
        "stamp": {"record": stored_record(2**63, b"[1]")},
        "due": {"record": stored_record(STAMP_US, b"[1]"), "attempts": b"\xff" * 38},
    }[damage]
    put_entry(hands.store, DEFAULT, **fields)
    for _ in range(3):
        hands.archiver.run_once()
    assert good.id in {row.message_id.hex for row in rows()}
    assert hands.left() == {DEFAULT: 0}


def test_a_number_that_no_column_holds_blocks_nobody(hands: Hands) -> None:
    good = record.using(durable=True).enqueue("good")
    hands.work()
    put_entry(
        hands.store,
        DEFAULT,
        record=stored_record(STAMP_US, b'{"args":[],"replay_of":99999999999999999999}'),
    )
    for _ in range(3):
        hands.archiver.run_once()
    assert good.id in {row.message_id.hex for row in rows()}
    assert hands.left() == {DEFAULT: 0}


def test_a_row_that_the_table_refuses_is_not_just_left_out(hands: Hands) -> None:
    put_entry(
        hands.store, DEFAULT, record=stored_record(STAMP_US, b'{"args":[],"max_attempts":-1}')
    )
    hands.archive()
    assert UnarchivableEntry.objects.count() == 1


def test_a_lock_that_ends_while_the_culprit_is_looked_for_makes_nobody_unarchivable(
    hands: Hands,
) -> None:
    record.using(durable=True).enqueue("good")
    hands.work()
    entries = FinishedStream(hands.store, DEFAULT, "killed").read()
    with archive_locked(1) as met:
        store_entries(entries, True)
    assert len(met) == 1
    assert (len(rows()), UnarchivableEntry.objects.count(), statuses()) == (1, 0, [])


def test_a_lock_that_ends_in_a_search_of_many_makes_nobody_unarchivable(hands: Hands) -> None:
    finish(hands, 4, durable=True)
    entries = FinishedStream(hands.store, DEFAULT, "killed").read()
    with (
        archive_locked(4) as met,
        pytest.raises(ArchiveUnavailable),
    ):  # four, two, one, and the good row
        store_entries(entries, True)
    assert len(met) == 4
    store_entries(entries, True)
    assert (len(rows()), UnarchivableEntry.objects.count(), statuses()) == (4, 0, [])


def test_a_server_that_only_reads_for_a_moment_makes_nobody_unarchivable(hands: Hands) -> None:
    """PostgreSQL's failover: an InternalError, which is looked into at once."""
    finish(hands, 1)
    entries = FinishedStream(hands.store, DEFAULT, "killed").read()
    failed: list[int] = []

    def insert(execute: Any, sql: str, *rest: Any) -> Any:
        if "INSERT INTO" in sql and not failed:
            failed.append(1)
            raise InternalError("cannot execute INSERT in a read-only transaction")
        return execute(sql, *rest)

    with connection.execute_wrapper(insert):
        store_entries(entries)
    assert (failed, len(rows()), UnarchivableEntry.objects.count()) == ([1], 1, 0)


def test_what_meets_locks_of_its_own_waits_and_blocks_nobody(hands: Hands) -> None:
    """As when a lock is on one row only, or its insert takes longer than the statement timeout."""
    good = record.enqueue("good")
    bad = record.using(key="wrong").enqueue("slow")
    hands.work()
    entries = FinishedStream(hands.store, DEFAULT, "killed").read()

    def insert(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "INSERT INTO" in sql and bad.id in str(params):
            raise OperationalError("database table is locked")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(insert):
        assert [entry.id.hex() for entry in store_entries(entries, True)] == [bad.id]
    assert [row.message_id.hex for row in rows()] == [good.id]
    assert UnarchivableEntry.objects.count() == 0
    hands.archive()
    assert {row.message_id.hex for row in rows()} == {good.id, bad.id}


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (OperationalError("database is locked"), True),
        (OperationalError("(1644, 'not this one')"), False),
        (IntegrityError("a lock of another kind: locked"), False),
    ],
)
def test_a_refusal_that_may_pass_is_told_from_one_that_does_not(
    error: Exception, passing: bool
) -> None:
    assert may_pass(error) is passing


# Archived again


def aside(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> UnarchivableEntry:
    """All that has ended is archived while the database refuses what has the key "wrong"."""
    monkeypatch.setattr(module, "PATIENCE", 0)
    with refusing_bad_rows():
        hands.archive()
    row: UnarchivableEntry = UnarchivableEntry.objects.get()
    return row


def test_what_was_put_aside_is_archived_again_as_if_nothing_had_been(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 60_000
    handle = record.using(durable=True, key="wrong", headers={"who": "me"}).enqueue(text)
    hands.work()
    ended_ms = hands.store.clock_ms()
    aside(hands, monkeypatch)
    assert rows() == []
    done = archive_again(UnarchivableEntry.objects.all(), by="root", reason="mended")
    row = only_row()
    assert (row.message_id.hex, row.key, row.state, row.attempts) == (
        handle.id,
        "wrong",
        "acked",
        1,
    )
    assert (json.loads(row.body)["args"], json.loads(row.headers)) == ([text], {"who": "me"})
    assert abs(utc(row.finished_at).timestamp() * 1000 - ended_ms) < 1000
    assert (done.count, done.refused, UnarchivableEntry.objects.count(), statuses()) == (
        1,
        {},
        0,
        [],
    )
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason, action.count) == (
        "archive again",
        "root",
        "mended",
        1,
    )
    assert action.finished_at


def test_a_dead_letter_that_was_put_aside_can_be_replayed_after_that(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail.using(key="wrong").enqueue("reject")
    hands.work()
    aside(hands, monkeypatch)
    archive_again(UnarchivableEntry.objects.all())
    assert only_row().state == "dead"
    assert replay(ArchivedMessage.objects.all()).count == 1


def test_what_is_refused_again_stays_aside_and_says_why(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue()
    hands.work()
    row = aside(hands, monkeypatch)
    UnarchivableEntry.objects.update(error="OldError()")
    with refusing_bad_rows():
        done = archive_again(UnarchivableEntry.objects.all())
    row.refresh_from_db()
    assert (done.count, sum(done.refused.values()), rows()) == (0, 1, [])
    assert "not this one" in row.error
    assert OperatorAction.objects.count() == 0


def test_an_outbox_row_that_was_locked_when_its_message_was_put_aside_is_closed_in_the_end(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(durable=True, key="wrong").enqueue()
    kept_rows = list(OutboxMessage.objects.all())
    hands.work()
    aside(hands, monkeypatch)
    OutboxMessage.objects.bulk_create(kept_rows)
    archive_again(UnarchivableEntry.objects.all())
    assert (len(rows()), statuses()) == (1, [])


def test_redacted_arguments_are_put_aside_redacted_and_the_rest_is_kept(
    hands: Hands, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": "tests.archive.test_unarchivable.hide"}
    record.using(key="wrong", headers={"who": "me"}, max_attempts=7).enqueue("secret")
    hands.work()
    content = json.loads(aside(hands, monkeypatch).content)
    assert all(
        b"secret" not in base64.b64decode(value)
        for name, value in content.items()
        if name != "at_ms"
    )
    settings.DELAYQ = {**settings.DELAYQ, "REDACT": ""}
    archive_again(UnarchivableEntry.objects.all())
    row = only_row()
    assert json.loads(row.body) == {"args": ["hidden"], "kwargs": {}, "redaction": "done"}
    assert (row.key, json.loads(row.headers), row.max_attempts, row.attempts) == (
        "wrong",
        {"who": "me"},
        7,
        1,
    )
    assert row.task == "tests.app.tasks.record"


def hide(topic: str, task: str, args: Any, kwargs: Any) -> Any:
    return ["hidden"], {}


def test_two_that_archive_again_at_once_make_one_row(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue()
    hands.work()
    aside(hands, monkeypatch)
    counts = together(*[lambda: archive_again(UnarchivableEntry.objects.all()).count] * 2)
    assert (sorted(counts), len(rows()), UnarchivableEntry.objects.count()) == ([0, 1], 1, 0)
    assert OperatorAction.objects.get().count == 1


def test_an_entry_that_another_process_has_archived_is_no_error(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue()
    hands.work()
    aside(hands, monkeypatch)
    reads: list[str] = []

    def overtake(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("SELECT") and UnarchivableEntry._meta.db_table in sql:
            reads.append(sql)
            if len(reads) == 2:
                UnarchivableEntry.objects.all().delete()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(overtake):
        done = archive_again(UnarchivableEntry.objects.all())
    assert (done.count, done.refused, OperatorAction.objects.count()) == (0, {}, 0)


def test_an_entry_whose_commit_fails_stays_aside(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.using(key="wrong").enqueue()
    hands.work()
    aside(hands, monkeypatch)
    with failing_commits(1):
        done = archive_again(UnarchivableEntry.objects.all())
    assert (done.count, done.refused) == (0, {"OperationalError": 1})
    assert (rows(), UnarchivableEntry.objects.count()) == ([], 1)
    assert not OperatorAction.objects.exists()
