"""Which ids of an archive are settled, by its database and the clock of that. Needs no Django
project."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Any

from django.db import DatabaseError

from ..job_errors import Refused
from .databases import select_rows

logger = logging.getLogger("delayq")

#: Seconds after which InnoDB renews its list of transactions: until then the list may lack a
#: transaction that has just begun.
STALE = 0.15

#: For a role to which MariaDB or MySQL does not show the transactions of others.
UNSEEN = (
    "Open transactions cannot be seen here, so a row of one that takes longer than the settle time "
    "may be missed: "
    "GRANT PROCESS ON *.* to the role of the pipeline."
)

#: How often PostgreSQL is asked when the open transactions began, and seconds in between: locks and
#: sessions are two lists, and a transaction that ends just then is in the first list only.
TRIES, PAUSE = 20, 0.05

#: Transactions that may have ids which nobody else sees yet: those that hold a lock for writing on
#: the table.
_WRITERS = """
SELECT pid,
(SELECT min(xact_start) FROM pg_stat_activity AS session WHERE session.pid = held.pid) AS since
FROM pg_locks AS held
WHERE locktype = 'relation' AND granted AND relation = %s::regclass
  AND pid IS DISTINCT FROM pg_backend_pid()
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
"""
_POSTGRESQL = f"""
SELECT least(statement_timestamp(), min(since)) - %s * interval '1 second', count(*) - count(since),
pg_is_in_recovery()
FROM ({_WRITERS}) AS writers
"""
_MYSQL = """
SELECT least(utc_timestamp(6), coalesce(min(convert_tz(trx_started, 'SYSTEM', '+00:00')),
utc_timestamp(6)))
       - INTERVAL %s MICROSECOND
FROM information_schema.innodb_trx
WHERE trx_mysql_thread_id <> connection_id() AND (trx_rows_modified > 0 OR trx_lock_structs > 0)
"""
_MYSQL_SEES = "SELECT count(*) FROM information_schema.innodb_trx"
_MYSQL_CLOCK = "SELECT utc_timestamp(6) - INTERVAL %s MICROSECOND"


def last_settled(connection: Any, table: str, seconds: float) -> int:
    """The biggest id of the archive below which no other id can appear any more; 0 when there is
    none.

    An id is taken when a row is inserted, and seen when its transaction commits: a smaller id may
    be seen later. So a row is settled when the database took it more than `seconds` ago and, on
    PostgreSQL, MariaDB and MySQL, also more than `seconds` before the oldest transaction began that
    may still hold ids. `seconds` has to be more than one INSERT takes. `connection` is Django's.
    Raises Refused when the database does not say when a writing transaction began, and the errors
    of the database.
    """
    table = connection.ops.quote_name(table)
    if connection.vendor == "sqlite":  # one writer at a time: a row that is seen is settled
        return select_rows(connection, f"SELECT max(id) FROM {table}")[0][0] or 0
    if connection.vendor == "postgresql":
        horizon = _postgresql_horizon(connection, table, seconds)
    elif connection.vendor == "mysql":
        microseconds = round(seconds * 1_000_000)
        if seconds < 1:
            time.sleep(STALE)
        try:
            ((horizon,),) = select_rows(connection, _MYSQL, microseconds)
        except DatabaseError as error:
            logger.warning("%s (%s)", UNSEEN, error)
            ((horizon,),) = select_rows(connection, _MYSQL_CLOCK, microseconds)
    else:
        raise Refused(
            f"It is not known which ids are settled on {connection.vendor}: use PostgreSQL, "
            f"MariaDB or SQLite."
        )
    ((last,),) = select_rows(connection, f"SELECT max(id) FROM {table}")
    if last is None:
        return 0
    # The first row that the database took at the horizon or later.
    below = _surely_before(connection, table, horizon, last)
    query = f"SELECT min(id) FROM {table} WHERE id > %s AND archived_at >= %s"
    ((first,),) = select_rows(connection, query, below, horizon)
    if first is None:
        return int(last)
    # A row that came at the horizon or later may be committed since, while another transaction with
    # a smaller id is still open.
    query = f"SELECT max(id) FROM {table} WHERE id < %s AND archived_at < %s"
    return select_rows(connection, query, first, horizon)[0][0] or 0


def unseen(connection: Any) -> str:
    """Why last_settled() may be wrong here; empty when the database shows all that it needs."""
    if connection.vendor != "mysql":
        return ""
    try:
        select_rows(connection, _MYSQL_SEES)
    except DatabaseError:
        return UNSEEN
    return ""


def _postgresql_horizon(connection: Any, table: str, seconds: float) -> datetime:
    for _ in range(TRIES):
        ((horizon, unknown, standby),) = select_rows(connection, _POSTGRESQL, seconds, table)
        if standby:
            raise Refused(
                "The archive's database is a standby, which does not know who writes: use the "
                "primary."
            )
        if not unknown:
            return horizon
        time.sleep(PAUSE)
    raise Refused(
        f"{unknown} other transactions write to the archive, and the database does not say since "
        f"when: they are prepared transactions, or of another role. End the prepared ones, or "
        f"GRANT pg_read_all_stats to the role of the pipeline."
    )


def _surely_before(connection: Any, table: str, horizon: datetime, top: int) -> int:
    """An id below all rows that came at the horizon or later. Ids grow nearly as time does: the
    search goes backwards from the newest row, in steps that double. archived_at has no index and
    needs none."""
    nearest = f"SELECT id, archived_at < %s FROM {table} WHERE id <= %s ORDER BY id DESC LIMIT 1"
    step = 1_000
    while step < 2 * top:
        found = select_rows(connection, nearest, horizon, top - step)
        if not found:
            break
        ((below, is_before),) = found
        if is_before:
            return int(below)
        step *= 2
    return 0
