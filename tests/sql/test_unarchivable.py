"""What the database refuses is put aside, alone, and only when it is itself to blame."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from django_delayq import archiver as module
from django_delayq.archiver import store_entries
from django_delayq.exceptions import ArchiveUnavailable
from django_delayq.models import ArchivedMessage, OutboxMessage, UnarchivableEntry
from django_delayq.store.finished import FinishedStream
from tests.sql.faults import ARCHIVE, failing_commits, refusing_bad_rows, without_column, without_table
from tests.sql.hands import DEFAULT, Hands, put_entry, rows, statuses, stored_record
from tests.sql.test_archiver import STAMP_US, finish
from tests.tasks import record


def test_a_bad_row_is_put_aside_and_blocks_nobody(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    good = record.using(durable=True).enqueue_many((number,) for number in range(20))
    bad = record.using(durable=True, key="wrong").enqueue("the bad one")
    hands.work()
    monkeypatch.setattr(module, "PATIENCE", 0)
    with refusing_bad_rows():
        hands.archive()
    assert {row.message_id.hex for row in rows()} == {handle.id for handle in good}
    aside = UnarchivableEntry.objects.get()
    assert (aside.message_id, aside.topic, aside.partition, aside.state) == (bad.id, "default", 0, "acked")
    assert "not this one" in aside.error
    assert (statuses(), hands.left()) == ([], {DEFAULT: 0})


def test_what_is_put_aside_holds_the_whole_message(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    record.using(key="wrong").enqueue("the bad one")
    (lease,) = hands.claim()
    hands.run(lease)
    monkeypatch.setattr(module, "PATIENCE", 0)
    with refusing_bad_rows():
        hands.archive()
    fields = {
        name: base64.b64decode(value) for name, value in json.loads(UnarchivableEntry.objects.get().content).items()
    }
    assert (fields["record"], fields["attempts"]) == (lease.record, lease.entry)
    assert json.loads(fields["detail"])["worker"] == "host:1:hands"


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
        "due": {"record": stored_record(STAMP_US, b"[1]"), "attempts": b"\xff" * 32},
    }[damage]
    put_entry(hands.store, DEFAULT, **fields)
    for _ in range(3):
        hands.archiver.run_once()
    assert good.id in {row.message_id.hex for row in rows()}
    assert hands.left() == {DEFAULT: 0}


def test_a_number_that_no_column_holds_blocks_nobody(hands: Hands) -> None:
    good = record.using(durable=True).enqueue("good")
    hands.work()
    put_entry(hands.store, DEFAULT, record=stored_record(STAMP_US, b'{"args":[],"replay_of":99999999999999999999}'))
    for _ in range(3):
        hands.archiver.run_once()
    assert good.id in {row.message_id.hex for row in rows()}
    assert hands.left() == {DEFAULT: 0}


def test_a_row_that_the_table_refuses_is_not_just_left_out(hands: Hands) -> None:
    put_entry(hands.store, DEFAULT, record=stored_record(STAMP_US, b'{"args":[],"max_attempts":-1}'))
    hands.archive()
    assert UnarchivableEntry.objects.count() == 1
