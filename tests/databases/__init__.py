"""Launches the databases that the SQL tests run on. All of them end with the test process.

`python -m tests.databases mariadb pytest -m databases` is a whole run on one of them.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.databases.base import Database, Server, Sqlite
from tests.databases.mariadb import MariaDB, MySQL, install_driver
from tests.databases.postgresql import PostgreSQL

__all__ = [
    "KINDS",
    "VARIABLE",
    "Database",
    "Server",
    "configured",
    "kind_of",
    "launcher",
    "missing",
    "require",
]

VARIABLE = "DELAYQ_TEST_DATABASE"

_KINDS: dict[str, type[Database]] = {
    kind.kind: kind for kind in (Sqlite, PostgreSQL, MariaDB, MySQL)
}
KINDS = tuple(_KINDS)


def launcher(kind: str, durable: bool = False) -> Database:
    """A database of this kind, not started: `with launcher("postgresql") as database: ...`"""
    if kind not in _KINDS:
        raise ValueError(f"unknown kind of database: {kind!r}; known are {', '.join(KINDS)}")
    return _KINDS[kind](durable)


def require(kind: str) -> None:
    """Skip the test when the kind's server is not installed; fail it in CI, where nothing may be
    skipped unseen."""
    import pytest  # not above: the settings of worker processes import this module

    if reason := missing(kind):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def missing(kind: str) -> str:
    """What to install for this kind; empty when it is there."""
    return _KINDS[kind].missing()


def configured(otherwise: dict[str, Any]) -> dict[str, Any]:
    """For settings: the entry of DATABASES that the environment gives, else this one."""
    entry = json.loads(os.environ.get(VARIABLE) or "null") or otherwise
    if kind_of(entry) == "mariadb":
        install_driver()
    return entry


def kind_of(entry: dict[str, Any]) -> str:
    """The kind of the database that an entry of DATABASES is about."""
    return next(name for name, kind in _KINDS.items() if kind.engine == entry["ENGINE"])
