"""Which ids of an archive are settled, asked of its database and by its clock. Needs no Django
project."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Any

from ..errors import Refused

logger = logging.getLogger("delayq")

#: Seconds after which InnoDB makes its list of transactions anew: until then it may lack who has
#: just begun.
STALE = 0.15

#: Of a role that MariaDB or MySQL does not show the transactions of others.
UNSEEN = (
    "Open transactions cannot be seen here, so a row of one that takes longer than the settle time "
    "may be missed: "
    "GRANT PROCESS ON *.* to the role of the pipeline."
)

#: Times that PostgreSQL is asked since when somebody writes, and seconds between them: locks and
#: sessions are two lists, and who ends just then is in the first one only.
TRIES, PAUSE = 20, 0.05

#: Who may have ids that nobody else sees yet: whoever has a lock for writing on the table, until
#: the transaction ends.
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
    """The biggest id of the archive below which no other one can appear any more; 0 when there is
    none.

    An id is taken when a row is inserted, and seen when its transaction commits: a smaller one may
    come later. So a row counts when the database took it more than `seconds` ago and, on
    PostgreSQL, MariaDB and MySQL, so long before the oldest transaction that may still hold ids
    began. `seconds` has to be more than what one INSERT takes. `connection` is Django's. Raises
    Refused, when the database does not say since when somebody writes, and what it raises itself.
    """
    if connection.vendor == "sqlite":  # one writer at a time: what is seen is settled
        return _one(connection, f"SELECT max(id) FROM {connection.ops.quote_name(table)}") or 0
    horizon = _horizon(connection, table, seconds)
    return _last_before(connection, connection.ops.quote_name(table), horizon)


def unseen(connection: Any) -> str:
    """What whoever relies on last_settled() should know; empty when the database says all that it
    needs."""
    from django.db import DatabaseError

    if connection.vendor != "mysql":
        return ""
    try:
        _one(connection, _MYSQL_SEES)
    except DatabaseError:
        return UNSEEN
    return ""


def _horizon(connection: Any, table: str, seconds: float) -> datetime:
    """What the database took before this instant is settled."""
    if connection.vendor == "postgresql":
        return _postgresql_horizon(connection, table, seconds)
    if connection.vendor == "mysql":
        return _mysql_horizon(connection, seconds)
    raise Refused(
        f"It is not known which ids are settled on {connection.vendor}: use PostgreSQL, MariaDB or "
        f"SQLite."
    )


def _postgresql_horizon(connection: Any, table: str, seconds: float) -> datetime:
    for _ in range(TRIES):
        with connection.cursor() as cursor:
            cursor.execute(_POSTGRESQL, [seconds, connection.ops.quote_name(table)])
            horizon, unknown, standby = cursor.fetchone()
        if standby:
            raise Refused(
                "The archive's database is a standby, which does not know who writes: use the "
                "primary."
            )
        if not unknown:
            return horizon  # type: ignore[no-any-return]
        time.sleep(PAUSE)
    raise Refused(
        f"{unknown} other transactions write to the archive, and the database does not tell since "
        f"when: they are "
        "prepared ones, or of another role (GRANT pg_read_all_stats to the role of the pipeline)."
    )


def _mysql_horizon(connection: Any, seconds: float) -> datetime:
    from django.db import DatabaseError

    microseconds = round(seconds * 1_000_000)
    if seconds < 1:
        time.sleep(STALE)
    try:
        horizon: datetime = _one(connection, _MYSQL, microseconds)
    except DatabaseError as error:
        logger.warning("%s (%s)", UNSEEN, error)
        horizon = _one(connection, _MYSQL_CLOCK, microseconds)
    return horizon


def _last_before(connection: Any, table: str, horizon: datetime) -> int:
    """The biggest id below the first one that the database took at the horizon or later."""
    top = _one(connection, f"SELECT max(id) FROM {table}")
    if top is None:
        return 0
    below = _surely_before(connection, table, horizon, top)
    first = _one(
        connection,
        f"SELECT min(id) FROM {table} WHERE id > %s AND archived_at >= %s",
        below,
        horizon,
    )
    if first is None:
        return int(top)
    # What came at the horizon or later may have been committed since, with another one below it
    # still open.
    last = f"SELECT max(id) FROM {table} WHERE id < %s AND archived_at < %s"
    return _one(connection, last, first, horizon) or 0


def _surely_before(connection: Any, table: str, horizon: datetime, top: int) -> int:
    """An id below all that came at the horizon or later: ids grow nearly as time does, so it is
    looked for from the newest ones backwards, in steps twice as wide each. archived_at has no index
    and needs none."""
    nearest = f"SELECT id, archived_at < %s FROM {table} WHERE id <= %s ORDER BY id DESC LIMIT 1"
    step = 1_000
    while step < 2 * top:
        with connection.cursor() as cursor:
            cursor.execute(nearest, [horizon, top - step])
            found = cursor.fetchone()
        if found is None:
            break
        if found[1]:
            return int(found[0])
        step *= 2
    return 0


def _one(connection: Any, query: str, *parameters: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchone()[0]
