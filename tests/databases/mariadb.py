"""MariaDB and MySQL, without a service."""

from __future__ import annotations

import signal
import socket
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.databases.base import Server, on_path
from tests.databases.processes import Child

_SBIN = ("/usr/sbin", "/usr/local/sbin")  # where a plain user's PATH does not look


class MariaDB(Server):
    """MariaDB as it is installed, without what is configured for the whole machine."""

    kind = "mariadb"
    engine = "django.db.backends.mysql"
    install = "MariaDB (apt-get install mariadb-server)"
    user = "root"
    graceful = signal.SIGTERM
    immediate = signal.SIGKILL

    @classmethod
    def _installed(cls) -> Path | None:
        return on_path("mariadbd", *_SBIN)

    @property
    def entry(self) -> dict[str, Any]:
        # With TLS PyMySQL would read all certificates of the machine for each connection.
        return super().entry | {"OPTIONS": {} if has_mysqlclient() else {"ssl_disabled": True}}

    def start(self) -> None:
        install_driver()
        super().start()

    def _initialise(self) -> None:
        (self.folder / "start.sql").write_text("CREATE DATABASE IF NOT EXISTS delayq;\n")
        home = self.binary().parent.parent
        program = on_path("mariadb-install-db", f"{home}/bin") or "mariadb-install-db"
        if home != Path("/usr"):
            program = home / "bin" / "mariadb-install-db"
        options = ("--auth-root-authentication-method=normal", "--skip-test-db", *self._storage())
        self._run(str(program), "--no-defaults", f"--basedir={home}", *options)

    def _command(self) -> list[str]:
        return [
            str(self.binary()),
            "--no-defaults",
            *self._storage(),
            f"--init-file={self.folder}/start.sql",
            f"--pid-file={self.folder}/server.pid",
            f"--socket={self.folder}/server.sock",
            f"--tmpdir={self.folder}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--max-connections=300",
            "--character-set-server=utf8mb4",
        ]

    def _storage(self) -> list[str]:
        # Without fsync, too, every commit is written to the operating system's cache, which
        # outlives a kill.
        return [
            f"--datadir={self.data}",
            "--skip-name-resolve",
            "--innodb-log-file-size=16M",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
            f"--innodb-flush-method={'fsync' if self.durable else 'nosync'}",
        ]

    def _serves(self, child: Child) -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(self.folder / "server.sock"))
            return bool(connection.recv(1))  # the server speaks first
        return False


class MySQL(MariaDB):
    """MySQL. `make matrix` has one; nothing else starts it."""

    kind = "mysql"
    install = "nothing: `make matrix ARGS=mysql9` fetches it"

    @classmethod
    def _installed(cls) -> Path | None:
        return None

    def _initialise(self) -> None:
        (self.folder / "start.sql").write_text(
            "CREATE DATABASE IF NOT EXISTS delayq;\n"
            "CREATE USER IF NOT EXISTS root@'127.0.0.1';\n"
            "GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        self._run(str(self.binary()), "--no-defaults", "--initialize-insecure", *self._storage())

    def _command(self) -> list[str]:
        return [*super()._command(), "--mysqlx=OFF"]

    def _storage(self) -> list[str]:
        return [
            f"--basedir={self.binary().parent.parent}",
            f"--datadir={self.data}",
            "--skip-name-resolve",
            "--skip-log-bin",
            "--secure-file-priv=NULL",
            "--innodb-redo-log-capacity=32M",
            f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
            f"--innodb-flush-method={'fsync' if self.durable else 'nosync'}",
        ]


def has_mysqlclient() -> bool:
    """Whether the driver in C is installed. The tests do not ask for it: it has to be compiled."""
    there = sys.modules.get("MySQLdb")
    return there.__name__ == "MySQLdb" if there else find_spec("MySQLdb") is not None


def install_driver() -> None:
    """PyMySQL in place of MySQLdb, where that is missing. Django takes its version for one that it
    knows."""
    if "MySQLdb" in sys.modules or has_mysqlclient():
        return
    import pymysql  # not above: other databases go without it

    pymysql.install_as_MySQLdb()
