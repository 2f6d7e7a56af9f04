"""Connections to the database of the parameters where there is no Django project: on executors and
in the planner of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DjangoError
from django.db.utils import ConnectionHandler, load_backend

from ...core.exceptions import ConfigurationError, DatabaseUnavailable
from ..params import Database

#: Seconds that a reader of SQLite waits for a writer, unless OPTIONS say more.
PATIENCE = 60.0
#: OPTIONS that are left out for readers: a pool would open connections that nobody uses, and
#: SERIALIZABLE reads would lock rows.
_FOR_WRITERS = frozenset({"pool", "isolation_level", "transaction_mode"})
#: What makes a connection to SQLite one for reading, see address_of().
READ_ONLY = "PRAGMA query_only = 1"


@contextmanager
def connected(database: Database, *, typed: bool = False) -> Iterator[Any]:
    """A connection of Django's for reading, closed at the end. That of SQLite cannot write, makes
    no new database of a wrong path, and gives values as they are stored, unless they are to be
    `typed`: then a time is a datetime.

    Raises DatabaseUnavailable and ConfigurationError. Neither names a password.
    """
    entry = database
    if backend_of(database).vendor == "sqlite":
        options = {**database.options, "timeout": patience_of(database)}
        if not typed:
            options["detect_types"] = 0
        options.pop("init_command", None)  # it may write, as journal_mode=WAL does
        entry = msgspec.structs.replace(database, name=address_of(database.name), options=options)
    with closing(connection_to(entry)) as connection:
        try:
            connection.ensure_connection()
            with connection.cursor() as cursor:
                if connection.vendor == "sqlite":
                    cursor.execute(READ_ONLY)
                elif connection.vendor == "postgresql":
                    # The statement_timeout of the project is for its pages; a range may take
                    # minutes.
                    cursor.execute("SET statement_timeout = 0")
        except DjangoError as error:
            raise unavailable(database, error) from None
        yield connection


def select_rows(connection: Any, sql: str, *parameters: Any) -> Sequence[tuple[Any, ...]]:
    """All rows of a statement, by a connection of Django's."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall()


def connection_to(database: Database) -> Any:
    """A connection of Django's, not opened yet. It is not made from settings, because a Python
    worker of Spark serves one job after another.

    Raises ConfigurationError when there is no such engine here, or a secret cannot be resolved.
    """
    entry = database.resolved()
    entry["ENGINE"] = backend_of(database).__module__.removesuffix(".base")
    for name in _FOR_WRITERS & entry["OPTIONS"].keys():
        del entry["OPTIONS"][name]
    return ConnectionHandler({"default": entry})["default"]


def mysql_driver() -> None:
    """Let PyMySQL stand in for mysqlclient where that is not installed."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()


def backend_of(database: Database) -> Any:
    """The class of Django's that connects: that of the engine, or of the engine under it where the
    first cannot be loaded; that of PostGIS, for example, needs GDAL."""
    if not settings.configured:
        settings.configure(USE_TZ=True)
    if database.vendor == "mysql":
        mysql_driver()
    try:
        return load_backend(database.engine).DatabaseWrapper
    except ImproperlyConfigured as error:
        problem = f"The database's engine {database.engine!r} cannot be loaded here: {error}"
    simple = "sqlite3" if database.vendor == "sqlite" else database.vendor
    try:
        return load_backend(f"django.db.backends.{simple}").DatabaseWrapper
    except ImproperlyConfigured:
        raise ConfigurationError(problem) from None


def unavailable(database: Database, error: Exception) -> DatabaseUnavailable:
    """The error to raise when no connection can be made: without the password."""
    message = str(error).strip()
    if secret := database.password.resolve():
        message = message.replace(secret, "***")
    place = f" at {database.host}" if database.host else ""
    port = f":{database.port}" if database.port else ""
    return DatabaseUnavailable(
        f"The database {database.name}{place}{port} cannot be reached from here: {message}"
    )


def patience_of(database: Database) -> float:
    """Seconds that a reader of SQLite waits for a writer."""
    return max(PATIENCE, float(database.options.get("timeout") or 0))


def address_of(name: str) -> str:
    """The address of a file of SQLite that has to be there. Raises ConfigurationError for a
    database in memory.

    Its mode is rw, not ro. A reader has to undo what a writer left that was killed in the middle of
    a commit, and SQLite sometimes takes a writer at work for such a one; with ro the reader fails.
    READ_ONLY keeps it from writing anything else. Where the file may not be written, SQLite opens
    it with ro.
    """
    if ":memory:" in name or "mode=memory" in name:
        raise ConfigurationError(
            "The archive is in the memory of one process, where Spark cannot read it."
        )
    if not name.startswith("file:"):
        return f"{Path(name).absolute().as_uri()}?mode=rw"
    path, _, told = name.partition("?")
    others = [one for one in told.split("&") if one and one not in ("mode=rw", "mode=rwc")]
    return f"{path}?{'&'.join(others if 'mode=ro' in others else [*others, 'mode=rw'])}"
