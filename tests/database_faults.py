"""Ways in which the database of the tests fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_delayq.models import ArchivedMessage

ARCHIVE = ArchivedMessage._meta.db_table

_TRIGGERS = {
    "sqlite": [
        "CREATE TRIGGER refuse BEFORE INSERT ON {table} WHEN NEW.key = 'wrong' "
        "BEGIN SELECT RAISE(ABORT, 'not this one'); END"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.key = 'wrong' THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; "
        "END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ],
    "mysql": [
        "CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW IF NEW.`key` = 'wrong' THEN "
        "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    ],
}
_UNDO = {
    "sqlite": ["DROP TRIGGER refuse"],
    "postgresql": ["DROP TRIGGER refuse ON {table}", "DROP FUNCTION refuse()"],
    "mysql": ["DROP TRIGGER refuse"],
}


def execute(*statements: str) -> None:
    """Run them on the database of the tests."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.format(table=ARCHIVE))


@contextmanager
def refusing_bad_rows() -> Iterator[None]:
    """The database refuses rows of the archive whose key is "wrong"."""
    execute(*_TRIGGERS[connection.vendor])
    try:
        yield
    finally:
        execute(*_UNDO[connection.vendor])


@contextmanager
def without_table(model: Any) -> Iterator[None]:
    """As if its migration were missing."""
    table = model._meta.db_table
    execute(f"ALTER TABLE {table} RENAME TO hidden_away")
    try:
        yield
    finally:
        execute(f"ALTER TABLE hidden_away RENAME TO {table}")


@contextmanager
def without_column(table: str, column: str) -> Iterator[None]:
    """As if the migration of a column were missing."""
    quoted = connection.ops.quote_name
    execute(f"ALTER TABLE {table} RENAME COLUMN {quoted(column)} TO hidden_away")
    try:
        yield
    finally:
        execute(f"ALTER TABLE {table} RENAME COLUMN hidden_away TO {quoted(column)}")


@contextmanager
def database_away(alias: str = "default") -> Iterator[None]:
    """Nobody connects, and what is connected breaks: at SQLite another process writes without
    end."""
    wrapper = connections[alias]
    wrapper.close()
    if wrapper.vendor == "sqlite":
        with _locked(wrapper):
            yield
        return
    told = dict(wrapper.settings_dict)
    wrapper.settings_dict |= {"PORT": "1"}
    try:
        yield
    finally:
        wrapper.settings_dict |= told
        wrapper.close()


@contextmanager
def _locked(wrapper: BaseDatabaseWrapper) -> Iterator[None]:
    options = wrapper.settings_dict["OPTIONS"]
    told = dict(options)
    options["timeout"] = 0.01
    name = wrapper.settings_dict["NAME"]
    writer = sqlite3.connect(name, uri=str(name).startswith("file:"), isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        writer.execute("ROLLBACK")
        writer.close()
        options |= told
        wrapper.close()


@contextmanager
def before(word: str, interruption: Callable[[], Any]) -> Iterator[None]:
    """Interrupt this thread before its first statement on the outbox that begins so."""
    done: list[str] = []

    def interrupt(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith(word) and "outboxmessage" in sql and not done:
            done.append(sql)
            interruption()
        return execute(sql, *rest)

    with connection.execute_wrapper(interrupt):
        yield
    assert done, f"no {word}"


@contextmanager
def failing_commits(
    times: int, error: Callable[[], Exception] = OperationalError, *, after: int = 0
) -> Iterator[list[int]]:
    """The next commits of this thread fail, after all statements have succeeded; `after` so many
    that succeed. Gives the number that has failed."""
    failed: list[int] = []
    left = [after]
    commit = connection._commit

    def fail() -> None:
        left[0] -= 1
        if left[0] < 0 and len(failed) < times:
            failed.append(1)
            raise error()
        commit()

    connection._commit = fail  # type: ignore[method-assign]
    try:
        yield failed
    finally:
        connection._commit = commit  # type: ignore[method-assign]


_LOCK = {
    "sqlite": ["BEGIN EXCLUSIVE"],
    "postgresql": ["BEGIN", "LOCK TABLE {table} IN SHARE MODE"],  # what CREATE INDEX takes
    "mysql": ["LOCK TABLES {table} READ"],
}
_UNLOCK = {"sqlite": "COMMIT", "postgresql": "COMMIT", "mysql": "UNLOCK TABLES"}
_IMPATIENT = {
    "sqlite": "PRAGMA busy_timeout = 10",
    "postgresql": "SET lock_timeout = 50",
    "mysql": "SET lock_wait_timeout = 1",
}


@contextmanager
def archive_locked(statements: int) -> Iterator[list[str]]:
    """Another connection keeps the archive locked against inserts until so many of this thread's
    have failed.

    Gives the errors that they met.
    """
    other, met = connections.create_connection("default"), list[str]()
    # SQLite waits where the transaction begins.
    begin = (
        "BEGIN"
        if connection.vendor == "sqlite"
        else f"INSERT INTO {connection.ops.quote_name(ARCHIVE)}"
    )

    def insert(execute: Any, sql: str, *rest: Any) -> Any:
        if begin in sql and len(met) == statements:
            unlock()
        if begin in sql:
            with connection.cursor() as cursor:
                cursor.execute(_IMPATIENT[connection.vendor])
        try:
            return execute(sql, *rest)
        except OperationalError as error:
            met.append(str(error))
            raise

    def unlock() -> None:
        if other.connection is not None:
            with other.cursor() as cursor:
                cursor.execute(_UNLOCK[connection.vendor])
            other.close()

    with other.cursor() as cursor:
        for statement in _LOCK[connection.vendor]:
            cursor.execute(statement.format(table=ARCHIVE))
    try:
        with connection.execute_wrapper(insert):
            yield met
    finally:
        unlock()
        connection.close()
