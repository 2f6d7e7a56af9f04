"""Makes the archive's table of PostgreSQL a partitioned one, while others read and write it.

The rows stay where they are: the table becomes the oldest partition of a new one that takes its
name. For that it needs an index that has the instant of the partition, which is built beside all
work, and a constraint that says which rows it has, so that the database need not look. Then all
changes places in one short transaction. A kill leaves the plain table, with what is done so far, or
the partitioned one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from datetime import timezone as zones

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper

from ..core.conf import get_settings
from ..core.exceptions import ConfigurationError, PartitioningRefused
from ..models import ArchivedMessage
from .months import (
    AHEAD,
    in_short_transaction,
    make_month,
    make_months,
    months_from,
    own_as,
    read_months,
    table_of,
)

#: The first month of its own begins so much later than now: until then, all rows that come belong
#: to the table as it is.
LEAD = timedelta(days=2)
#: The lock of pg_try_advisory_lock(): one process partitions at a time.
_LOCK = 0x64656C61
_NAME = ArchivedMessage._meta.db_table
_INDEX = f"{_NAME}_pkey_new"
_CHECK = f"{_NAME}_before_"
#: At most so many characters of a name stay, so that there is room for a suffix.
_ROOM = 48

#: What a table has that the new one would not have.
_OBSTACLES = """
WITH archive AS (SELECT to_regclass(%s)::oid AS oid)
SELECT 'the trigger ' || tgname FROM pg_trigger, archive
WHERE tgrelid = archive.oid AND NOT tgisinternal
UNION ALL
SELECT DISTINCT 'the view ' || ev_class::regclass::text FROM archive, pg_depend
JOIN pg_rewrite ON pg_rewrite.oid = objid
WHERE pg_depend.classid = 'pg_rewrite'::regclass AND refclassid = 'pg_class'::regclass
AND refobjid = archive.oid
UNION ALL
SELECT 'the policy ' || polname FROM pg_policy, archive WHERE polrelid = archive.oid
UNION ALL
SELECT 'row level security' FROM pg_class, archive
WHERE pg_class.oid = archive.oid AND relrowsecurity
UNION ALL
SELECT 'the foreign key ' || conname || ' of ' || conrelid::regclass FROM pg_constraint, archive
WHERE contype = 'f' AND archive.oid IN (confrelid, conrelid)
UNION ALL
SELECT 'the publication ' || pubname FROM archive, pg_publication_rel
JOIN pg_publication ON pg_publication.oid = prpubid WHERE prrelid = archive.oid
UNION ALL
SELECT 'rights on the column ' || attname FROM pg_attribute, archive
WHERE attrelid = archive.oid AND attacl IS NOT NULL
UNION ALL
SELECT 'inheritance' FROM pg_inherits, archive WHERE archive.oid IN (inhrelid, inhparent)
UNION ALL
SELECT 'the unique index ' || indexrelid::regclass || ' without enqueued_at'
FROM pg_index, archive WHERE indrelid = archive.oid AND indisunique AND NOT indisprimary
AND NOT (SELECT attnum FROM pg_attribute WHERE attrelid = archive.oid AND attname = 'enqueued_at')
= ANY (indkey::int2[])
"""

#: The indexes without a constraint: name, whether unique, and how each is made, from USING on.
_INDEXES = """
SELECT relname, indisunique, split_part(pg_get_indexdef(indexrelid), ' USING ', 2)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = to_regclass(%s) AND indisvalid
AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid) ORDER BY 1
"""
#: The constraints with an index.
_CONSTRAINTS = """
SELECT conname, contype = 'p', pg_get_constraintdef(oid) FROM pg_constraint
WHERE conrelid = to_regclass(%s) AND contype IN ('p', 'u') ORDER BY 1
"""
#: Who may do what: the grantee (empty: everybody), and the right.
_RIGHTS = """
SELECT CASE grantee WHEN 0 THEN '' ELSE pg_get_userbyid(grantee) END, privilege_type, is_grantable
FROM pg_class, aclexplode(relacl) WHERE pg_class.oid = to_regclass(%s) AND grantee <> relowner
"""


@dataclass(frozen=True)
class ArchivePlan:
    """What partition_archive() would do."""

    partitioned: bool
    """It is done already. Only missing months are made."""
    rows: int = 0
    """About how many rows the table has."""
    size: int = 0
    """Bytes, with the indexes."""
    boundary: datetime | None = None
    """When the first month of its own begins. What was enqueued before stays in one partition."""
    done: list[str] = field(default_factory=list)
    """What an earlier call has left ready."""
    problems: list[str] = field(default_factory=list)
    """What speaks against it."""


def plan_archive() -> ArchivePlan:
    """Look what partition_archive() would do; changes nothing. It reads the whole table once.
    Raises ConfigurationError on another database than PostgreSQL."""
    connection = connections[get_settings().database]
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"Only PostgreSQL can partition the archive, and {connection.alias!r} is "
            f"{connection.display_name}. `delayq prune` deletes row by row there."
        )
    if read_months(connection) is not None:
        return ArchivePlan(True)
    boundary, table = _boundary(), table_of(connection)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relkind, greatest(reltuples, 0)::bigint, pg_total_relation_size(oid) "
            "FROM pg_class WHERE oid = to_regclass(%s)",
            [table],
        )
        found = cursor.fetchone()
        if found is None:
            raise ConfigurationError(f"There is no table {table}. Run manage.py migrate.")
        kind, rows, size = found
        if kind == "p":
            raise PartitioningRefused(
                f"{table} is partitioned already, and has no default partition: it was partitioned "
                "by other means, which have to make its partitions too."
            )
        cursor.execute(_OBSTACLES, [table])
        problems = [
            f"It has {words}, which the new table would not have: remove it, and make it again "
            "when the archive is partitioned."
            for (words,) in cursor.fetchall()
        ]
        cursor.execute(f"SELECT count(*), min(id) FROM {table} WHERE enqueued_at >= %s", [boundary])
        late, first = cursor.fetchone()
        if late:
            problems.append(
                f"{late:,} rows were enqueued after {boundary:%Y-%m-%d}, the first one has the id "
                f"{first}: clocks were wrong. Correct them, or delete them."
            )
        done = [
            words
            for words, is_done in (
                ("the index", _is_index_valid(cursor)),
                ("the constraint", _check_of(boundary) in _checks(cursor, table)),
            )
            if is_done
        ]
    return ArchivePlan(False, rows, size, boundary, done, problems)


def partition_archive(tell: Callable[[str], object] = lambda _: None) -> list[str]:
    """Make the archive a table with a partition for each month, or make the months that are missing
    in such a table. `tell` is called before each step.

    Returns the new partitions. Raises PartitioningRefused, ConfigurationError, ArchiveBusy and the
    errors of the database; then the archive is as whole as before, and the next call goes on.
    """
    connection = connections[get_settings().database]
    plan = plan_archive()
    if plan.partitioned:
        return make_months(connection)
    if plan.problems:
        raise PartitioningRefused("\n".join(("The archive stays as it is.", *plan.problems)))
    assert plan.boundary is not None
    if connection.in_atomic_block:
        raise PartitioningRefused("The archive cannot be partitioned within a transaction.")
    table, boundary = table_of(connection), plan.boundary
    with _alone(connection), connection.cursor() as cursor:
        # The statement_timeout of the project is for its pages.
        cursor.execute("SET statement_timeout = 0")
        try:
            tell("builds an index beside all work")
            if not _is_index_valid(cursor):
                cursor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {_INDEX}")  # of a killed build
                cursor.execute(
                    f"CREATE UNIQUE INDEX CONCURRENTLY {_INDEX} ON {table} (id, enqueued_at)"
                )
            tell("checks which months the rows are of")
            in_short_transaction(connection, lambda held: _constrain(held, boundary))
            cursor.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {_check_of(boundary)}")
            tell("changes the tables")
            made = in_short_transaction(connection, lambda held: _swap(held, boundary))
            tell("gathers statistics")
            cursor.execute(f"ANALYZE {table}")
        finally:
            if connection.is_usable():
                cursor.execute("RESET statement_timeout")
    return made


def _boundary() -> datetime:
    """The first instant of a month that has some time to come."""
    ((_, following),) = months_from(datetime.now(zones.utc) + LEAD, 1)
    return following


def _check_of(boundary: datetime) -> str:
    return f"{_CHECK}{boundary:%Y_%m}"


def _checks(cursor: CursorWrapper, table: str) -> list[str]:
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = to_regclass(%s) AND contype = 'c' "
        "AND starts_with(conname, %s)",
        [table, _CHECK],
    )
    return [name for (name,) in cursor.fetchall()]


def _is_index_valid(cursor: CursorWrapper) -> bool:
    cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [_INDEX])
    return cursor.fetchone() == (True,)


@contextmanager
def _alone(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """One process partitions at a time. The lock ends with the connection, too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        if cursor.fetchone() != (True,):
            raise PartitioningRefused(
                "Another process partitions the archive just now. If it was killed, the database "
                "ends its last step by itself: try again later."
            )
        try:
            yield
        finally:
            try:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
            except DatabaseError:  # lost: then the lock is, too
                connection.close()


def _constrain(cursor: CursorWrapper, boundary: datetime) -> None:
    """Promise that the table has no row from the boundary on. The rows that are there are looked at
    later, without a lock."""
    table, wanted = table_of(cursor.db), _check_of(boundary)
    there = _checks(cursor, table)
    for name in there:
        if name != wanted:  # of a call in an earlier month
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    if wanted not in there:
        cursor.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {wanted} "
            f"CHECK (enqueued_at < '{boundary.isoformat()}') NOT VALID"
        )


def _swap(cursor: CursorWrapper, boundary: datetime) -> list[str]:
    """Put the new table in place of the old one, which becomes its oldest partition. Only the
    catalogue changes."""
    quote, parent = cursor.db.ops.quote_name, table_of(cursor.db)
    history, check = quote(f"{_NAME}_before_{boundary:%Y_%m}"), _check_of(boundary)
    cursor.execute(f"LOCK TABLE {parent} IN ACCESS EXCLUSIVE MODE")
    cursor.execute(_RIGHTS, [parent])
    rights = cursor.fetchall()
    cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [parent])
    (sequence,) = cursor.fetchone()
    cursor.execute(f"SELECT last_value, is_called FROM {sequence}")
    reached = cursor.fetchone()
    made_by = _step_aside(cursor, history)

    cursor.execute(
        f"CREATE TABLE {parent} (LIKE {history} INCLUDING ALL EXCLUDING INDEXES) "
        "PARTITION BY RANGE (enqueued_at)"
    )
    cursor.execute(f"ALTER TABLE {parent} DROP CONSTRAINT {check}")
    own_as(cursor, parent, history)
    # Not an identity: partitions have those from PostgreSQL 17 on only.
    cursor.execute(f"CREATE SEQUENCE {sequence} AS bigint")
    own_as(cursor, sequence, history)
    cursor.execute(f"ALTER SEQUENCE {sequence} OWNED BY {parent}.id")
    cursor.execute("SELECT setval(%s, %s, %s)", [sequence, *reached])
    cursor.execute(
        f"ALTER TABLE {parent} ALTER COLUMN id SET DEFAULT nextval('{sequence}'::regclass)"
    )
    for statement in made_by:
        cursor.execute(statement)
    for role, right, may_grant in rights:
        to = quote(role) if role else "PUBLIC"
        option = " WITH GRANT OPTION" if may_grant else ""
        cursor.execute(f"GRANT {right} ON {parent} TO {to}{option}")
        if right == "INSERT":  # an identity needs no right of its own
            cursor.execute(f"GRANT USAGE ON SEQUENCE {sequence} TO {to}")

    cursor.execute(
        f"ALTER TABLE {parent} ATTACH PARTITION {history} "
        f"FOR VALUES FROM (MINVALUE) TO ('{boundary.isoformat()}')"
    )
    cursor.execute(f"ALTER TABLE {history} DROP CONSTRAINT {check}")
    default = quote(f"{_NAME}_default")
    cursor.execute(f"CREATE TABLE {default} PARTITION OF {parent} DEFAULT")
    own_as(cursor, default, history)
    return [make_month(cursor, *month, default) for month in months_from(boundary, AHEAD)]


def _step_aside(cursor: CursorWrapper, history: str) -> list[str]:
    """Let the table give its names away, with those of its indexes. Returns the statements that
    make the same indexes of a new table."""
    quote, parent = cursor.db.ops.quote_name, table_of(cursor.db)
    made_by: list[str] = []
    cursor.execute(f"ALTER TABLE {parent} RENAME TO {history}")
    cursor.execute(_CONSTRAINTS, [history])
    for name, is_primary, content in cursor.fetchall():
        old, new = quote(name), quote(f"{name[:_ROOM]}_before")
        if is_primary:
            cursor.execute(f"ALTER TABLE {history} DROP CONSTRAINT {old}")
            cursor.execute(
                f"ALTER TABLE {history} ADD CONSTRAINT {new} PRIMARY KEY USING INDEX {_INDEX}"
            )
        else:
            cursor.execute(f"ALTER TABLE {history} RENAME CONSTRAINT {old} TO {new}")
        wanted = "PRIMARY KEY (id, enqueued_at)" if is_primary else content
        made_by.append(f"ALTER TABLE {parent} ADD CONSTRAINT {old} {wanted}")
    cursor.execute(_INDEXES, [history])
    for name, unique, rest in cursor.fetchall():
        cursor.execute(f"ALTER INDEX {quote(name)} RENAME TO {quote(f'{name[:_ROOM]}_before')}")
        kind = "UNIQUE INDEX" if unique else "INDEX"
        made_by.append(f"CREATE {kind} {quote(name)} ON {parent} USING {rest}")
    cursor.execute(f"ALTER TABLE {history} ALTER COLUMN id DROP IDENTITY")
    return made_by
