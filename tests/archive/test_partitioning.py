"""The archive of PostgreSQL becomes a partitioned table while it is used, and stays whole whatever
happens."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction

from django_delayq.archive import months, partitioning
from django_delayq.archive.archiver import store_entries
from django_delayq.archive.months import make_months, read_months
from django_delayq.archive.partitioning import partition_archive, plan_archive
from django_delayq.core.exceptions import ArchiveBusy, ConfigurationError, PartitioningRefused
from django_delayq.models import ArchivedMessage, OperatorAction
from tests.app.tasks import record
from tests.databases.partitioned import make_plain
from tests.hands import DEFAULT, Hands, rows, stored
from tests.killed import run_killed
from tests.operators.test_replay import dead

pytestmark = [pytest.mark.databases, pytest.mark.django_db(transaction=True)]

in_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="only PostgreSQL has partitions"
)
TABLE = ArchivedMessage._meta.db_table


@pytest.fixture(autouse=True)
def plain(transactional_db: None) -> Iterator[None]:
    """The archive is a plain table before each test, and as it was after it."""
    if connection.vendor != "postgresql":
        yield
        return
    was_partitioned = read_months(connection) is not None
    make_plain()
    yield
    make_plain()
    if was_partitioned:
        partition_archive()


def run(*args: str) -> str:
    out = StringIO()
    call_command("delayq", "partition-archive", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def execute(*statements: str) -> Any:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else None


def kind() -> str:
    """Of the table: r is a plain one, p a partitioned one."""
    return str(execute(f"SELECT relkind FROM pg_class WHERE oid = '{TABLE}'::regclass")[0][0])


def shape() -> tuple[Any, ...]:
    """Columns, indexes and constraints, without what makes a partitioned table different."""
    columns = execute(
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
        f"WHERE attrelid = '{TABLE}'::regclass AND attnum > 0 ORDER BY attnum"
    )
    indexes = execute(
        f"SELECT indexname, replace(indexdef, ' ONLY ', ' ') FROM pg_indexes "
        f"WHERE tablename = '{TABLE}' AND indexname NOT LIKE '%pkey' ORDER BY 1"
    )
    constraints = execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        f"WHERE conrelid = '{TABLE}'::regclass AND contype <> 'p' ORDER BY 1"
    )
    return columns, indexes, constraints


def fields(row: ArchivedMessage) -> dict[str, Any]:
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def month_ago(count: int) -> datetime:
    """The 15th of the month so many months before this one."""
    now = datetime.now(timezone.utc)
    year, month = divmod(now.year * 12 + now.month - 1 - count, 12)
    return datetime(year, month + 1, 15, tzinfo=timezone.utc)


@in_postgresql
def test_the_rows_stay_and_the_table_looks_as_before() -> None:
    dead(3)
    before, looks = [fields(row) for row in rows()], shape()
    made = partition_archive()
    assert kind() == "p"
    assert ([fields(row) for row in rows()], shape()) == (before, looks)
    assert len(made) == months.AHEAD
    assert dead(1)[0] > before[-1]["id"]


@in_postgresql
def test_its_indexes_are_the_same_on_each_partition() -> None:
    partition_archive()
    counts = execute(
        "SELECT inhrelid::regclass::text, (SELECT count(*) FROM pg_index WHERE indrelid = inhrelid "
        f"AND indisvalid) FROM pg_inherits WHERE inhparent = '{TABLE}'::regclass"
    )
    of_parent = execute(f"SELECT count(*) FROM pg_index WHERE indrelid = '{TABLE}'::regclass")
    assert {count for _, count in counts} == {of_parent[0][0]}
    assert len(counts) == months.AHEAD + 2


@in_postgresql
def test_a_life_has_one_row_in_all_partitions() -> None:
    partition_archive()
    life = {"message_id": uuid4(), "enqueued_at": stored(month_ago(-1))}
    values = fields(ArchivedMessage.objects.get(pk=dead(1)[0])) | {"id": None}
    ArchivedMessage.objects.create(**values | life)
    with pytest.raises(IntegrityError), transaction.atomic():
        ArchivedMessage.objects.create(**values | life)
    ArchivedMessage.objects.create(**values | life | {"enqueued_at": stored(month_ago(0))})
    assert ArchivedMessage.objects.filter(message_id=life["message_id"]).count() == 2


@in_postgresql
def test_what_finishes_is_archived_once_by_copy_and_by_insert(hands: Hands) -> None:
    partition_archive()
    record.enqueue_many([(n,) for n in range(120)])
    hands.work()
    from django_delayq.store.finished import FinishedStream

    entries = list(FinishedStream(hands.store, DEFAULT, "reader").read())
    store_entries(entries[:3])
    store_entries(entries)
    store_entries(entries)
    assert len(rows()) == 120


@in_postgresql
@pytest.mark.parametrize(
    ("name", "call", "before", "kind_then"),
    [
        pytest.param("_constrain", 1, True, "r", marks=pytest.mark.long),
        pytest.param("_constrain", 1, False, "r", marks=pytest.mark.long),
        pytest.param("_swap", 1, True, "r", marks=pytest.mark.long),
        pytest.param("make_month", 2, False, "r", marks=pytest.mark.long),
        ("_swap", 1, False, "r"),
        pytest.param("in_short_transaction", 2, False, "p", marks=pytest.mark.long),
    ],
)
def test_killed_at_each_step_it_is_whole_and_the_next_call_goes_on(
    hands: Hands, name: str, call: int, before: bool, kind_then: str
) -> None:
    dead(5)
    run_killed(
        f"from django_delayq.archive import partitioning\n"
        f"killing(partitioning, {name!r}, {call}, before={before})\n"
        "partitioning.partition_archive()\n"
    )
    assert (kind(), ArchivedMessage.objects.count()) == (kind_then, 5)
    dead(1)
    run()
    assert (kind(), ArchivedMessage.objects.count()) == ("p", 6)


@in_postgresql
def test_an_index_that_a_kill_has_left_invalid_is_built_anew() -> None:
    dead(2)
    execute(
        f"CREATE UNIQUE INDEX {partitioning._INDEX} ON {TABLE} (id, enqueued_at)",
        f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{partitioning._INDEX}'::regclass",
    )
    partition_archive()
    assert (kind(), len(rows())) == ("p", 2)


@in_postgresql
def test_writers_and_readers_go_on_meanwhile(hands: Hands) -> None:
    dead(200)
    over, errors, written = threading.Event(), [], []

    def write() -> None:
        try:
            while not over.is_set():
                written.extend(dead(3))
                assert ArchivedMessage.objects.order_by("-pk")[0].pk >= written[-1]
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        partition_archive()
    finally:
        over.set()
        thread.join()
    assert errors == []
    assert ArchivedMessage.objects.count() == 200 + len(written)
    assert len(set(written)) == len(written)


@in_postgresql
def test_two_at_once_do_not_disturb_each_other() -> None:
    other = connection.copy()
    try:
        with other.cursor() as held:
            held.execute("SELECT pg_advisory_lock(%s)", [partitioning._LOCK])
            with pytest.raises(PartitioningRefused, match="Another process"):
                partition_archive()
            held.execute("SELECT pg_advisory_unlock(%s)", [partitioning._LOCK])
            partition_archive()
            held.execute("SELECT pg_try_advisory_lock(%s)", [partitioning._LOCK])
            assert held.fetchone() == (True,)
    finally:
        other.close()


@in_postgresql
def test_a_long_transaction_is_not_waited_for_with_all_others_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(months, "TRIES", 2)
    monkeypatch.setattr(months, "LOCK_MS", 20)
    other = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(f"SELECT count(*) FROM {TABLE}")
        with pytest.raises(ArchiveBusy):
            partition_archive()
        assert kind() == "r"
        other.rollback()
        partition_archive()
    finally:
        other.close()


@in_postgresql
@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (f"CREATE VIEW late AS SELECT * FROM {TABLE}", "the view late"),
        (f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY", "row level security"),
        (f"CREATE UNIQUE INDEX one_task ON {TABLE} (task, message_id)", "unique index one_task"),
        (f"CREATE PUBLICATION news FOR TABLE {TABLE}", "the publication news"),
    ],
)
def test_what_the_new_table_would_lack_is_refused(statement: str, words: str) -> None:
    execute(statement)
    try:
        with pytest.raises(CommandError, match=words):
            run()
        assert kind() == "r"
        assert not OperatorAction.objects.exists()
    finally:
        execute("DROP PUBLICATION IF EXISTS news")


@in_postgresql
def test_rights_of_others_are_kept() -> None:
    execute(
        "DROP ROLE IF EXISTS delayq_reader",
        "CREATE ROLE delayq_reader",
        f"GRANT SELECT, INSERT ON {TABLE} TO delayq_reader",
    )
    try:
        partition_archive()
        execute("SET ROLE delayq_reader")
        dead(1)
        assert ArchivedMessage.objects.count() == 1
    finally:
        execute("RESET ROLE")
        make_plain()
        execute("DROP OWNED BY delayq_reader", "DROP ROLE delayq_reader")


@in_postgresql
def test_months_are_made_ahead_and_take_their_rows_from_the_default_partition() -> None:
    partition_archive()
    there = read_months(connection)
    assert there is not None
    last = there.months[-1]
    values = fields(ArchivedMessage.objects.get(pk=dead(1)[0])) | {"id": None}
    execute(f"DROP TABLE {last.table}")
    assert last.since is not None
    row = ArchivedMessage.objects.create(
        **values | {"enqueued_at": last.since, "message_id": uuid4()}
    )
    before = fields(ArchivedMessage.objects.get(pk=row.pk))
    assert execute(f"SELECT count(*) FROM {there.default}") == [(1,)]
    monkeyed = months.AHEAD
    months.AHEAD = 3
    try:
        assert len(make_months(connection)) >= 1
    finally:
        months.AHEAD = monkeyed
    assert execute(f"SELECT count(*) FROM {there.default}") == [(0,)]
    assert fields(ArchivedMessage.objects.get(pk=row.pk)) == before
    assert make_months(connection) == []


@in_postgresql
def test_rows_of_the_future_are_refused_with_their_ids() -> None:
    values = fields(ArchivedMessage.objects.get(pk=dead(1)[0])) | {"id": None}
    row = ArchivedMessage.objects.create(
        **values | {"enqueued_at": stored(month_ago(-30)), "message_id": uuid4()}
    )
    with pytest.raises(CommandError, match=f"1 rows were enqueued after .* has the id {row.pk}"):
        run()


@in_postgresql
def test_the_command_says_what_it_will_do_and_what_it_has_done() -> None:
    assert "Nothing speaks against it" in run("--dry-run")
    assert kind() == "r"
    assert json.loads(run("--dry-run", "--json"))["partitioned"] is False
    assert "The archive is partitioned." in run("--by", "ann", "--reason", "it grows")
    action = OperatorAction.objects.get()
    assert (action.action, action.operator, action.reason) == (
        "partition archive",
        "ann",
        "it grows",
    )
    assert action.finished_at is not None
    assert run() == "No month is missing.\n"


@pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL can")
def test_other_databases_say_that_they_cannot() -> None:
    with pytest.raises(ConfigurationError, match="Only PostgreSQL can partition the archive"):
        plan_archive()


@in_postgresql
def test_a_row_that_stands_before_the_boundary_for_long_is_of_the_table_as_it_is() -> None:
    ((_, following),) = months.months_from(datetime.now(timezone.utc), 1)
    assert partitioning._boundary() - datetime.now(timezone.utc) > timedelta(days=2)
    assert partitioning._boundary() >= following
