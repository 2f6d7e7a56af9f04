"""Many rows at once reach PostgreSQL by COPY. They are the rows that single inserts would make."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from django.db import connection
from django.forms.models import model_to_dict
from django.test.utils import CaptureQueriesContext
from msgspec import structs

from django_delayq.archive import archive_rows, copying
from django_delayq.archive.archive_rows import forms_of, insert, is_archived, row_of
from django_delayq.archive.archiver import store_entries
from django_delayq.core.database import LEAST_TO_COPY
from django_delayq.core.message import new_id
from django_delayq.models import ArchivedMessage, UnarchivableEntry
from django_delayq.store.entries import Entry
from django_delayq.store.finished import FinishedStream
from tests.app.sql_tasks import count
from tests.app.tasks import record
from tests.hands import DEFAULT, Hands, rows

pytestmark = pytest.mark.databases

MANY = LEAST_TO_COPY + 10


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each COPY had."""
    sizes: list[int] = []
    copy = copying.copy_rows

    def noted(rows: Any, connection: Any) -> None:
        sizes.append(len(rows))
        copy(rows, connection)

    monkeypatch.setattr(copying, "copy_rows", noted)
    return sizes


def copies(*sizes: int) -> list[int]:
    """Only PostgreSQL has COPY."""
    return list(sizes) if connection.vendor == "postgresql" else []


def read(hands: Hands) -> list[Entry]:
    return list(FinishedStream(hands.store, DEFAULT, "reader").read())


def finish(hands: Hands, count: int) -> list[Entry]:
    record.enqueue_many([(f"\u20ac\t\\N\n\"' %s {n}",) for n in range(count - 1)])
    record.using(headers={"a": "b"}, key="k\t\\").enqueue(1)
    hands.work()
    return read(hands)


def content(row: ArchivedMessage) -> dict[str, Any]:
    return {k: v for k, v in model_to_dict(row).items() if k not in ("id", "archived_at")}


def test_its_rows_are_those_of_single_inserts(hands: Hands, copied: list[int]) -> None:
    entries = finish(hands, MANY)
    store_entries(entries)
    by_copy = [content(row) for row in rows()]
    assert (len(by_copy), copied) == (MANY, copies(MANY))
    ArchivedMessage.objects.all().delete()
    insert([row_of(entry, forms_of(connection)) for entry in entries], connection)
    assert [content(row) for row in rows()] == by_copy


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL has COPY")
@pytest.mark.parametrize("hour", [0, 1])
def test_in_an_hour_that_comes_twice_a_message_has_one_row(
    hands: Hands, settings: Any, hour: int
) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    at = datetime(2026, 10, 25, hour, 30, tzinfo=timezone.utc)  # 02:30 in Berlin, both times
    at_ms = int(at.timestamp() * 1000)
    entry = Entry(b"", DEFAULT, new_id(), "acked", at_ms, b"", b"", b"{}")
    copying.copy_rows(copying.rows_to_copy([entry]), connection)
    insert([row_of(entry, forms_of(connection))], connection)
    assert len(rows()) == 1
    assert is_archived(entry.id, at_ms * 1000)


def test_few_rows_are_inserted(hands: Hands, copied: list[int]) -> None:
    store_entries(finish(hands, LEAST_TO_COPY - 1))
    assert (len(rows()), copied) == (LEAST_TO_COPY - 1, [])


def test_a_row_that_is_there_stays_and_the_others_come(hands: Hands, copied: list[int]) -> None:
    entries = finish(hands, MANY)
    store_entries(entries[:3])
    kept = [row.pk for row in rows()]
    store_entries(entries)
    store_entries(entries)
    assert (len(rows()), [row.pk for row in rows()][:3]) == (MANY, kept)
    assert copied == copies(MANY, MANY)


def test_an_instant_that_no_calendar_has_spoils_no_other_row(hands: Hands) -> None:
    record.enqueue_many([(n,) for n in range(MANY)])
    hands.work()
    entries = read(hands)
    far = structs.replace(entries[7], at_ms=10**15)
    store_entries([*entries[:7], far, *entries[8:]])
    assert (len(rows()), UnarchivableEntry.objects.count()) == (MANY - 1, 1)


def test_the_row_of_an_exactly_once_run_is_not_inserted_again(
    hands: Hands, copied: list[int]
) -> None:
    count.enqueue_many([()] * MANY)
    hands.work()
    kept = [row.pk for row in rows()]
    assert len(kept) == MANY
    with CaptureQueriesContext(connection) as queries:
        store_entries(read(hands))
    assert [row.pk for row in rows()] == kept
    assert not [query for query in queries if "INSERT" in query["sql"]]


def test_a_result_that_speaks_of_archiving_is_archived(hands: Hands) -> None:
    record.enqueue(1)
    hands.work()
    (entry,) = read(hands)
    detail = b'{"worker":"w","result":{"archived":true}}'
    store_entries([structs.replace(entry, detail=detail)])
    assert len(rows()) == 1


def test_statements_of_bounded_size_have_all_rows(
    hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_rows, "PACKET", 2_000)
    entries = finish(hands, MANY)
    odd = "100% of \\ 'a' \"b\" %s %(x)s"
    values = [
        (*row_of(entry, forms_of(connection))[:7], odd, *row_of(entry, forms_of(connection))[8:])
        for entry in entries
    ]
    with CaptureQueriesContext(connection) as queries:
        insert(values, connection)
    assert {row.reason for row in rows()} == {odd}
    assert sorted(row.body for row in rows()) == sorted(value[8] for value in values)
    if connection.vendor == "mysql":
        assert len([query for query in queries if "INSERT" in query["sql"]]) > 5
