"""The months of a partitioned archive (PostgreSQL): lists them, makes those that come, drops those
that are over.

A row is one life of a message: its id and the instant at which it was enqueued. This instant also
names the partition. So two rows of one life always meet in the same partition, and its unique index
is that of the whole archive. Nothing else could be the key: an instant that is only known at the
end, as finished_at, may differ when the same end is archived twice.

What fits into no month is in the default partition: rows of months that were dropped before they
came, and those that a drop has left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from datetime import timezone as zones
from typing import NamedTuple, TypeVar

from django.db import OperationalError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.db.models import Q

from ..core.exceptions import ArchiveBusy
from ..core.times import stored
from ..models import ArchivedMessage
from .selection import Rows

T = TypeVar("T")

#: Months after the present one that are made before they come.
AHEAD = 2
#: A month is dropped when no more rows of it have to stay: they move in the same transaction.
MOST_STAYING = 10_000
#: Milliseconds for which a change waits for its lock. Meanwhile all who come later wait behind it.
LOCK_MS = 500
#: The same where only writers of a month that is over would wait: vacuum gives way after a second.
OLD_LOCK_MS = 3_000
#: How often a change tries to get its lock, and seconds in between.
TRIES, PAUSE = 20, 0.25
#: SQLSTATE of a lock that did not come in time, and of a deadlock.
_LOCKED = ("55P03", "40P01")

_MONTHS = r"""
SELECT child.oid::regclass::text,
       substring(bound FROM $$FROM \('([^']+)'\)$$)::timestamptz,
       substring(bound FROM $$TO \('([^']+)'\)$$)::timestamptz,
       bound = 'DEFAULT'
FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid,
LATERAL pg_get_expr(child.relpartbound, child.oid) AS bound
WHERE inhparent = to_regclass(%s)
ORDER BY 3 NULLS LAST
"""


class Month(NamedTuple):
    """One partition. Instants are as the models hold them."""

    table: str
    """As SQL names it."""
    since: datetime | None
    """Rows that were enqueued then or later; None: all before `until`."""
    until: datetime

    @property
    def rows(self) -> Rows:
        """Its rows. The database looks into this partition only."""
        rows: Rows = ArchivedMessage.objects.filter(enqueued_at__lt=self.until)
        return rows if self.since is None else rows.filter(enqueued_at__gte=self.since)


class Months(NamedTuple):
    """The partitions of the archive."""

    months: list[Month]
    """The oldest first."""
    default: str
    """The default partition, as SQL names it."""


def read_months(connection: BaseDatabaseWrapper) -> Months | None:
    """The partitions of the archive; None when it is a plain table, as it is on other databases
    than PostgreSQL."""
    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute(_MONTHS, [table_of(connection)])
        found = cursor.fetchall()
    default = next((table for table, *_, is_default in found if is_default), "")
    if not default:
        return None
    return Months([Month(*month) for *month, is_default in found if not is_default], default)


def table_of(connection: BaseDatabaseWrapper) -> str:
    """The archive's table, as SQL names it."""
    return str(connection.ops.quote_name(ArchivedMessage._meta.db_table))


def months_from(instant: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """So many months, beginning with that of the instant: their first instants, and those of the
    months that follow them. In UTC."""
    instant = instant.astimezone(zones.utc)
    first = instant.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    for _ in range(count):
        year, month = divmod(first.year * 12 + first.month, 12)
        following = first.replace(year=year, month=month + 1)
        yield first, following
        first = following


def make_months(connection: BaseDatabaseWrapper) -> list[str]:
    """Make the partitions of this month and of the AHEAD next ones, as far as they are missing.
    Rows that have come for them move there from the default partition.

    Returns the new tables. Raises ArchiveBusy, and ProgrammingError when the user of the database
    does not own the table.
    """
    made: list[str] = []
    for first, following in months_from(datetime.now(zones.utc), AHEAD + 1):
        there = read_months(connection)
        if there is None:
            return made
        since = stored(first)
        if any((month.since or since) <= since < month.until for month in there.months):
            continue
        default = there.default

        def make(cursor: CursorWrapper) -> str:
            return make_month(cursor, first, following, default)  # noqa: B023 - called at once

        made.append(in_short_transaction(connection, make))
    return made


def make_month(cursor: CursorWrapper, first: datetime, following: datetime, default: str) -> str:
    """Make the partition of one month, in the transaction of the cursor. Returns its table.

    It is a table first and is attached then: that locks out neither readers nor writers of the
    other months.
    """
    parent = table_of(cursor.db)
    name = f"{ArchivedMessage._meta.db_table}_{first:%Y_%m}"
    table, columns = cursor.db.ops.quote_name(name), columns_of(cursor.db)
    cursor.execute(
        f"CREATE TABLE {table} (LIKE {parent} INCLUDING ALL EXCLUDING DEFAULTS EXCLUDING IDENTITY)"
    )
    own_as(cursor, table, parent)
    # Without the lock, a row might come into it between the move and the attachment.
    cursor.execute(f"LOCK TABLE {default} IN ACCESS EXCLUSIVE MODE")
    cursor.execute(
        f"WITH moved AS (DELETE FROM {default} WHERE enqueued_at >= %s AND enqueued_at < %s "
        f"RETURNING {columns}) INSERT INTO {table} ({columns}) SELECT {columns} FROM moved",
        [first, following],
    )
    cursor.execute(
        f"ALTER TABLE {parent} ATTACH PARTITION {table} "
        f"FOR VALUES FROM ('{first.isoformat()}') TO ('{following.isoformat()}')"
    )
    return name


def own_as(cursor: CursorWrapper, table: str, model: str) -> None:
    """Give the table to the owner of the other one, in case that a superuser makes it."""
    cursor.execute(
        "SELECT pg_get_userbyid(relowner), relowner::regrole::text = quote_ident(current_user) "
        "FROM pg_class WHERE oid = to_regclass(%s)",
        [model],
    )
    owner, is_ours = cursor.fetchone()
    if not is_ours:
        cursor.execute(f"ALTER TABLE {table} OWNER TO {cursor.db.ops.quote_name(owner)}")


def columns_of(connection: BaseDatabaseWrapper) -> str:
    """All columns of the archive, as SQL names them."""
    quote = connection.ops.quote_name
    return ", ".join(quote(str(field.column)) for field in ArchivedMessage._meta.concrete_fields)


def months_before(connection: BaseDatabaseWrapper, instant: datetime) -> list[Month]:
    """The months that were over at the instant; none where the archive is a plain table."""
    there = read_months(connection)
    return [month for month in there.months if month.until <= instant] if there else []


def held_since(connection: BaseDatabaseWrapper, instant: datetime) -> datetime | None:
    """When the first month of its own begins that was not over at the instant: rows that were
    enqueued from then on go with their months later. None where the archive is a plain table."""
    there = read_months(connection)
    held = (month.since for month in (there.months if there else ()) if month.until > instant)
    return next((since for since in held if since is not None), None)


def is_droppable(month: Month, goes: Q) -> bool:
    """Whether to drop the month is worth it: rows of it go, or it is empty, and few rows stay."""
    staying = _few(month.rows.exclude(goes))
    return staying <= MOST_STAYING and (not staying or month.rows.filter(goes).exists())


def drop_month(
    connection: BaseDatabaseWrapper, month: Month, goes: Q, record: Callable[[Rows], int]
) -> int | None:
    """Drop the month with the rows to which `goes` applies. The others stay as they are: they move
    to the default partition.

    `record` is called with the rows that go, in the same transaction, and returns how many they
    are. None: too many rows stay by now. Raises ArchiveBusy; nothing has changed then.
    """
    parent, columns = table_of(connection), columns_of(connection)

    def drop(cursor: CursorWrapper) -> int | None:
        cursor.execute(f"SET LOCAL lock_timeout = {OLD_LOCK_MS}")
        # Nobody changes its rows any more. Readers go on, and so do writers of all other months.
        cursor.execute(f"LOCK TABLE {month.table} IN SHARE MODE")
        cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
        staying = list(month.rows.exclude(goes).values_list("pk", flat=True)[: MOST_STAYING + 1])
        if len(staying) > MOST_STAYING:
            return None
        count = record(month.rows.filter(goes))
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {month.table}")
        cursor.execute(
            f"INSERT INTO {parent} ({columns}) SELECT {columns} FROM {month.table} "
            "WHERE id = ANY(%s)",
            [staying],
        )
        cursor.execute(f"DROP TABLE {month.table}")
        return count

    return in_short_transaction(connection, drop)


def in_short_transaction(
    connection: BaseDatabaseWrapper, change: Callable[[CursorWrapper], T]
) -> T:
    """Call `change` in a transaction that waits LOCK_MS for a lock, and again when it did not get
    it: whoever waits for the lock of a table holds up all who come later. Raises ArchiveBusy."""
    for _ in range(TRIES):
        try:
            with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                return change(cursor)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", "") not in _LOCKED:
                raise
        time.sleep(PAUSE)
    raise ArchiveBusy


def _few(rows: Rows) -> int:
    """How many rows there are, at most one more than may stay."""
    return int(rows.order_by()[: MOST_STAYING + 1].count())
