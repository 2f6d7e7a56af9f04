"""Servers and databases of versions that the tests do not have otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from tests.matrix.debian import unpacked
from tests.matrix.environments import ROOT

#: All that talks to Redis, but for the tests that have a server of another kind.
ON_REDIS = (
    "tests/store", "tests/worker", "-m", "not elsewhere and not acceptance and not long",
    "-k", "not redis62 and not valkey",
)  # fmt: skip
#: What a database can do differently. tests/databases is about the databases that the suite starts.
ON_DATABASE = (
    "-m", "databases and not long", "--ignore=tests/pipeline", "--ignore=tests/databases",
)  # fmt: skip


class Row(NamedTuple):
    """One version of one server."""

    name: str
    release: str
    packages: Sequence[str]
    programs: Sequence[str]
    """Their paths in the packages. The first is the server."""
    variable: str
    """Tells the tests where the server is."""
    database: str = ""
    """The kind of tests.databases; empty for Redis."""

    def run(self, arguments: Sequence[str]) -> int:
        """Unpack the server where it is missing, and run the tests on it. Returns pytest's code.
        Raises Unavailable."""
        root = unpacked(self.release, self.packages, self.programs)
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal"]
        if self.database:
            on = [sys.executable, "-m", "tests.databases", self.database]
            command = [*on, *command, *ON_DATABASE]
        else:
            command += ON_REDIS
        environment = {**os.environ, self.variable: str(root / self.programs[0])}
        return subprocess.run(
            [*command, *arguments], cwd=ROOT, env=environment, check=False
        ).returncode


def _postgresql(version: int, release: str) -> Row:
    programs = [f"usr/lib/postgresql/{version}/bin/{name}" for name in ("postgres", "initdb")]
    packages = [f"postgresql-{version}"]
    variable = "DELAYQ_TEST_POSTGRESQL"
    return Row(f"postgresql{version}", release, packages, programs, variable, "postgresql")


def _redis(name: str, package: str) -> Row:
    return Row(name, "trixie", [package], [f"usr/bin/{package}"], "DELAYQ_TEST_REDIS")


_MARIADB = ["usr/sbin/mariadbd", "usr/bin/my_print_defaults", "usr/bin/resolveip"]

ROWS = (
    _redis("redis8", "redis-server"),
    _redis("valkey8", "valkey-server"),
    _postgresql(15, "bookworm"),
    _postgresql(17, "trixie"),
    Row(
        "mariadb11",
        "trixie",
        ["mariadb-server-core", "mariadb-client", "mariadb-server"],
        _MARIADB,
        "DELAYQ_TEST_MARIADB",
        "mariadb",
    ),
    Row("mysql9", "sid", ["mysql-server-core"], ["usr/sbin/mysqld"], "DELAYQ_TEST_MYSQL", "mysql"),
)
