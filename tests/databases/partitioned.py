"""The archive of the test database as a partitioned table, and as a plain one again."""

from __future__ import annotations

from datetime import datetime, timezone
from importlib import import_module

from django.apps import apps
from django.db import connection

from django_delayq.archive import months, partitioning
from django_delayq.models import ArchivedMessage


def partition_now(months_ago: int = 1) -> None:
    """Partition the archive, which has no newer rows, so that the months from then on have
    partitions of their own; does nothing on other databases than PostgreSQL."""
    if connection.vendor != "postgresql":
        return
    boundary = partitioning._boundary
    now = datetime.now(timezone.utc)
    year, month = divmod(now.year * 12 + now.month - 1 - months_ago, 12)
    first = datetime(year, month + 1, 1, tzinfo=timezone.utc)
    ahead = partitioning.AHEAD
    partitioning._boundary, partitioning.AHEAD = lambda: first, months_ago + ahead
    try:
        partitioning.partition_archive()
    finally:
        partitioning._boundary, partitioning.AHEAD = boundary, ahead
    months.make_months(connection)


def make_plain() -> None:
    """Give the archive a new, empty table, as the migration makes it."""
    table = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
    migration = import_module("django_delayq.migrations.0001_initial")
    with connection.schema_editor() as editor:
        editor.create_model(ArchivedMessage)
        migration.add_indexes(apps, editor)
