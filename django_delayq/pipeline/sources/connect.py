"""Connections to the database of the parameters, where no Django project is: on executors and in
Spark's planner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...core.exceptions import ConfigurationError, DatabaseUnavailable
from ..params import Database

#: Seconds that a reader of SQLite waits for a writer, unless OPTIONS say more.
PATIENCE = 60.0
#: OPTIONS that are not for readers: a pool opens connections that nobody uses, and SERIALIZABLE
#: reads lock rows.
_FOR_WRITERS = frozenset({"pool", "isolation_level", "transaction_mode"})
#: What engines are made of that need more than a driver: GDAL, say, which an executor may lack.
_MADE_OF = {"postgis": "postgresql", "spatialite": "sqlite3"}


class Connected(NamedTuple):
    """An open connection, and how its SQL is written."""

    vendor: str
    """Of Django's backend: postgresql, mysql, sqlite, oracle or another one's."""
    fetch: Callable[[str], Sequence[tuple[Any, ...]]]
    """All rows of a statement without parameters."""
    quote: Callable[[str], str]
    limit: Callable[[int], str]
    """The clause that ends a SELECT after so many rows."""
    django: Any = None
    """Django's connection; None: sqlite3's own is used."""


@contextmanager
def connected(database: Database, *, plain: bool = False) -> Iterator[Connected]:
    """A connection for reading, closed at the end. SQLite's is read-only, and is Django's only with
    `plain`.

    Raises DatabaseUnavailable and ConfigurationError, neither of which names a password.
    """
    if backend_of(database).vendor == "sqlite" and not plain:
        with _sqlite(database) as connection:
            yield Connected(
                "sqlite", lambda sql: connection.execute(sql).fetchall(), _quoted, "LIMIT {}".format
            )
        return
    connection = connection_to(_read_only(database))
    try:
        _connect(connection, database)
        with connection.cursor() as cursor:

            def fetch(sql: str) -> Sequence[tuple[Any, ...]]:
                cursor.execute(sql)
                rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
                return rows

            ops = connection.ops
            yield Connected(
                connection.vendor,
                fetch,
                ops.quote_name,
                lambda n: ops.limit_offset_sql(0, n),
                connection,
            )
    finally:
        connection.close()


def connection_to(database: Database) -> Any:
    """A connection of Django's, not opened yet. Python workers serve one job after another, so
    settings would not do.

    Raises ConfigurationError when there is no such engine here, or a secret cannot be resolved.
    """
    from django.db.utils import ConnectionHandler

    options = {name: value for name, value in database.options.items() if name not in _FOR_WRITERS}
    entry = {
        "ENGINE": backend_of(database).__module__.removesuffix(".base"),
        "NAME": database.name,
        "USER": database.user,
        "PASSWORD": database.password.resolve(),
        "HOST": database.host,
        "PORT": database.port,
        "OPTIONS": options,
    }
    return ConnectionHandler({"default": entry})["default"]


def mysql_driver() -> None:
    """PyMySQL where mysqlclient is not."""
    try:
        import MySQLdb  # noqa: F401
    except ImportError:
        import pymysql

        pymysql.install_as_MySQLdb()


def backend_of(database: Database) -> Any:
    """The class of Django's that connects: the engine's own, or what it is made of where that
    cannot be loaded."""
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db.utils import load_backend

    if not settings.configured:
        settings.configure(USE_TZ=True)
    last = database.engine.rpartition(".")[2]
    simple = f"django.db.backends.{_MADE_OF.get(last, last)}"
    if last == "mysql":
        mysql_driver()
    try:
        return load_backend(database.engine).DatabaseWrapper
    except ImproperlyConfigured as error:
        problem = f"The database's engine {database.engine!r} cannot be loaded here: {error}"
    try:
        return load_backend(simple).DatabaseWrapper
    except ImproperlyConfigured:
        raise ConfigurationError(problem) from None


def _connect(connection: Any, database: Database) -> None:
    from django.db import Error

    try:
        connection.ensure_connection()
        if connection.vendor == "postgresql":
            # The project's is for its pages; a range may take minutes.
            with connection.cursor() as cursor:
                cursor.execute("SET statement_timeout = 0")
    except Error as error:
        raise unavailable(database, error) from None


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


# SQLite


@contextmanager
def _sqlite(database: Database) -> Iterator[Any]:
    """Read-only: a wrong path is an error, and never a new, empty database."""
    import sqlite3

    try:
        connection = sqlite3.connect(
            address_of(database.name), uri=True, timeout=patience_of(database)
        )
    except sqlite3.Error as error:
        raise unavailable(database, error) from None
    with closing(connection):
        yield connection


def patience_of(database: Database) -> float:
    """Seconds that a reader of SQLite waits for a writer."""
    return max(PATIENCE, float(database.options.get("timeout") or 0))


def address_of(name: str) -> str:
    """SQLite's, read-only. Raises ConfigurationError for a database in memory."""
    if ":memory:" in name or "mode=memory" in name:
        raise ConfigurationError(
            "The archive is in the memory of one process, where Spark cannot read it."
        )
    return name if name.startswith("file:") else f"{Path(name).absolute().as_uri()}?mode=ro"


def _read_only(database: Database) -> Database:
    """Django takes an address of SQLite's as a name."""
    if backend_of(database).vendor != "sqlite":
        return database
    return msgspec.structs.replace(database, name=address_of(database.name))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
