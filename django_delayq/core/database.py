"""How services reach the database of DELAYQ, which may be away, and write many rows to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import Error, InternalError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model, QuerySet

from .conf import get_settings
from .exceptions import DatabaseUnavailable

M = TypeVar("M", bound=Model)


@contextmanager
def reached() -> Iterator[None]:
    """Around one run of a service: a connection that does not work any more is made anew, now or in
    the next run.

    Raises DatabaseUnavailable in place of the database's own errors.
    """
    connection = connections[get_settings().database]
    connection.close_if_unusable_or_obsolete()
    try:
        yield
    except Error as error:
        connection.close()
        raise DatabaseUnavailable(f"{type(error).__name__}: {error}".strip()) from error


def write_first(connection: BaseDatabaseWrapper, model: type[Model]) -> None:
    """Lock out other writers where rows cannot be locked; changes nothing.

    Call it at the beginning of a transaction that reads rows, acts on them, and then changes them.
    A transaction of SQLite (except with transaction_mode IMMEDIATE) locks nothing until its first
    write, and refuses that write when somebody else has written since.
    """
    if not connection.features.has_select_for_update:
        model._default_manager.using(connection.alias).filter(pk=0).update(
            **{model._meta.pk.attname: 0}
        )


def locked(rows: QuerySet[M]) -> QuerySet[M]:
    """The rows, locked until the transaction ends. Rows that another transaction has locked are
    left out if the database can do that; else this waits for them. SQLite locks no rows (see
    write_first)."""
    features = connections[rows.db].features
    return rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)


#: Fewer rows are inserted as quickly by one statement.
LEAST_TO_COPY = 50


def can_copy(rows: Sequence[Any], connection: BaseDatabaseWrapper) -> bool:
    """Whether COPY is the quickest way in: there are many, and the database is PostgreSQL by
    psycopg 3."""
    if len(rows) < LEAST_TO_COPY or connection.vendor != "postgresql":
        return False
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # needs a driver

    return bool(is_psycopg3)


def copy_models(rows: Sequence[Model], connection: BaseDatabaseWrapper) -> None:
    """Insert rows of one model, whose ids the database gives, by COPY: see can_copy(). Raises
    IntegrityError when one of them is there already, and NotSupportedError where a policy of row
    security forbids COPY."""
    fields = [field for field in rows[0]._meta.concrete_fields if not field.primary_key]
    quote = connection.ops.quote_name
    columns = ", ".join(quote(str(field.column)) for field in fields)
    statement = f"COPY {quote(rows[0]._meta.db_table)} ({columns}) FROM STDIN"
    with (
        connection.cursor() as cursor,
        connection.wrap_database_errors,
        cursor.copy(statement) as copied,
    ):
        for row in rows:
            copied.write_row(
                [field.get_db_prep_save(field.pre_save(row, True), connection) for field in fields]
            )


#: Classes of SQLSTATE (PostgreSQL) that say nothing of a row: lost connections, a server that only
#: reads, deadlocks, no room, locks, timeouts and shutdowns, a failing disk.
_PASSING_STATES = ("08", "25006", "40", "53", "55", "57", "58")
#: Numbers of MariaDB and MySQL that say the same; from 2000 on it is the client that has lost its
#: server.
_PASSING_NUMBERS = frozenset({
    1015, 1020, 1021, 1040, 1053, 1114, 1158, 1159, 1160, 1161, 1180, 1203, 1205, 1206, 1213, 1226,
    1290, 1317, 1637, 1792, 1836, 1927, 1969, 3024, 3572,
})  # fmt: skip
#: Words in SQLite's errors about locks, its disk, and a file that it cannot open or write.
_PASSING_WORDS = (
    "locked",
    "busy",
    "disk",
    "unable to open",
    "readonly",
    "interrupted",
    "out of memory",
)


def may_pass(error: BaseException) -> bool:
    """Whether a database refused for a reason that has nothing to do with what it was given: a
    lock, a timeout, a server that is about to end. The same may succeed later."""
    if not isinstance(error, OperationalError | InternalError):
        return False
    cause = error.__cause__
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if state:
        return str(state).startswith(_PASSING_STATES)
    number = cause.args[0] if cause is not None and cause.args else None
    if isinstance(number, int):
        return number in _PASSING_NUMBERS or 2000 <= number < 3000
    return any(word in str(error) for word in _PASSING_WORDS)
