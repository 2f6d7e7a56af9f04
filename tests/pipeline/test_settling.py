"""Which ids of the archive are settled: no smaller one comes after them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from django_delayq.models import ArchivedMessage, UnarchivableEntry
from django_delayq.models.functions import UtcNow
from django_delayq.pipeline.job_errors import Refused
from django_delayq.pipeline.lake.watermark import last_settled_id
from django_delayq.pipeline.sources import settling
from tests.pipeline.rows import make_rows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.databases]

TABLE = ArchivedMessage._meta.db_table


@pytest.fixture
def other() -> Iterator[Any]:
    """Another connection to the same database."""
    with closing(connection.copy()) as other:
        yield other


def only_on(*vendors: str) -> None:
    if connection.vendor not in vendors:
        pytest.skip(f"about {' and '.join(vendors)}")


def age(ids: Sequence[int], by: timedelta = timedelta(hours=1)) -> None:
    """As if the database had taken them so long ago."""
    ArchivedMessage.objects.filter(id__in=ids).update(archived_at=UtcNow() - by)


@contextmanager
def uncommitted(other: Any, statement: str, *parameters: Any) -> Iterator[None]:
    """A transaction of somebody else that has done this, and commits at the end."""
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute(statement, parameters)
    yield
    other.commit()
    other.set_autocommit(True)


def late_row(other: Any, like: int) -> Any:
    """An uncommitted row of the archive, the next one after those that there are."""
    names = [field.column for field in ArchivedMessage._meta.local_fields]
    columns = [
        connection.ops.quote_name(name)
        for name in names
        if name not in ("id", "enqueued_at", "archived_at")
    ]
    due = connection.ops.quote_name("due_at")
    copied = (
        f"INSERT INTO {TABLE} (enqueued_at, {', '.join(columns)}) SELECT {due}, "
        f"{', '.join(columns)} FROM {TABLE}"
    )
    return uncommitted(other, f"{copied} WHERE id = %s", like)


def test_an_empty_archive_has_nothing_settled() -> None:
    assert last_settled_id(0) == 0
    assert last_settled_id(60) == 0


def test_rows_of_the_last_seconds_wait_for_the_next_time() -> None:
    only_on("postgresql", "mysql")
    ids = make_rows(5)
    age(ids[:3])
    assert last_settled_id(60) == ids[2]
    assert last_settled_id(7200) == 0
    assert last_settled_id(0) == ids[4]


def test_nothing_above_the_smallest_young_id_is_settled_whatever_its_age() -> None:
    only_on("postgresql", "mysql")
    ids = make_rows(5)
    age([*ids[:2], *ids[3:]])
    assert last_settled_id(60) == ids[1]


def test_the_first_young_row_is_found_far_below_the_newest_one() -> None:
    only_on("postgresql", "mysql")
    ids = make_rows(9_000)
    ArchivedMessage.objects.filter(id__lte=ids[1_499]).update(
        archived_at=UtcNow() - timedelta(hours=1)
    )
    assert last_settled_id(60) == ids[1_499]


def test_a_row_that_commits_late_is_below_no_settled_id(other: Any) -> None:
    only_on("postgresql", "mysql")
    (old,) = make_rows(1)
    age([old])
    with late_row(other, old):
        after = make_rows(3)
        assert (
            ArchivedMessage.objects.latest("id").id == after[-1]
        )  # up to here one would take, and lose the late one
        assert last_settled_id(0) == old
    (late,) = set(ArchivedMessage.objects.values_list("id", flat=True)) - {old, *after}
    assert old < late < after[0]
    assert last_settled_id(0) == after[-1]


def test_a_transaction_that_has_been_open_for_longer_than_the_margin_still_counts(
    other: Any,
) -> None:
    only_on("postgresql", "mysql")
    (old,) = make_rows(1)
    age([old])
    with late_row(other, old):
        after = make_rows(3)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_sleep(1.2)" if connection.vendor == "postgresql" else "SELECT sleep(1.2)"
            )
        assert last_settled_id(0.1) == old
    assert last_settled_id(0.1) == after[-1]


def test_who_only_reads_holds_nothing_up(other: Any) -> None:
    only_on("postgresql", "mysql")
    ids = make_rows(3)
    with uncommitted(other, f"SELECT count(*) FROM {TABLE}"):
        assert last_settled_id(0) == ids[-1]


def test_who_writes_elsewhere_holds_nothing_up_on_postgresql(other: Any) -> None:
    only_on("postgresql")
    ids = make_rows(3)
    with uncommitted(other, f"DELETE FROM {UnarchivableEntry._meta.db_table}"):
        assert last_settled_id(0) == ids[-1]


def test_what_is_seen_in_sqlite_is_settled() -> None:
    only_on("sqlite")
    ids = make_rows(3)
    assert last_settled_id(3600) == ids[-1]


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_clock_is_the_databases_whatever_the_projects_time_zone(
    zone: str, settings: Any
) -> None:
    only_on("postgresql", "mysql")
    settings.USE_TZ, settings.TIME_ZONE = False, zone
    ids = make_rows(4)
    with connection.cursor() as cursor:
        ago = {"postgresql": "interval '90 seconds'", "mysql": "INTERVAL 90 SECOND"}[
            connection.vendor
        ]
        cursor.execute(
            f"UPDATE {TABLE} SET archived_at = archived_at - {ago} WHERE id <= %s", [ids[1]]
        )
    assert last_settled_id(60) == ids[1]
    assert last_settled_id(120) == 0
    assert last_settled_id(0) == ids[3]


def test_without_the_privilege_mariadb_goes_by_its_clock_and_says_so(caplog: Any) -> None:
    only_on("mysql")
    ids = make_rows(3)
    with connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER looker@'127.0.0.1' IDENTIFIED BY 'x'")
        cursor.execute(
            f"GRANT SELECT ON {connection.settings_dict['NAME']}.* TO looker@'127.0.0.1'"
        )
    plain = connection.copy()
    plain.settings_dict = {**connection.settings_dict, "USER": "looker", "PASSWORD": "x"}
    with closing(plain), caplog.at_level(logging.WARNING, "delayq"):
        assert settling.last_settled(plain, TABLE, 0) == ids[-1]
    assert "GRANT PROCESS" in caplog.text


def test_a_writer_of_another_role_whose_start_is_not_told_is_refused(
    monkeypatch: Any, other: Any
) -> None:
    only_on("postgresql")
    monkeypatch.setattr(settling, "TRIES", 2)
    (old,) = make_rows(1)
    with late_row(other, old), connection.cursor() as cursor, transaction.atomic():
        cursor.execute("CREATE ROLE looker")
        cursor.execute(f"GRANT SELECT ON {TABLE} TO looker")
        cursor.execute("SET LOCAL ROLE looker")
        with pytest.raises(Refused, match="pg_read_all_stats"):
            last_settled_id(0)
        transaction.set_rollback(True)
