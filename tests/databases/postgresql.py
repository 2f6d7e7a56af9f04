"""PostgreSQL, without a service."""

from __future__ import annotations

import shutil
import signal
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from tests.databases.base import Server, on_path
from tests.databases.processes import Child, in_reach


class PostgreSQL(Server):
    """PostgreSQL 16 as the pgserver package has it, else the one that is installed."""

    kind = "postgresql"
    engine = "django.db.backends.postgresql"
    install = (
        "the pgserver package (pip install pgserver, Python 3.12 or earlier on x86-64 Linux or on "
        "macOS), "
        "or PostgreSQL (apt-get install postgresql)"
    )
    user = "delayq"
    graceful = (
        signal.SIGINT
    )  # rolls back what is open; SIGTERM would wait for every client to leave
    immediate = signal.SIGQUIT  # ends the processes that it forked, too

    @classmethod
    def _installed(cls) -> Path | None:
        spec = find_spec("pgserver")  # finds the package without running its code
        for folder in (spec and spec.submodule_search_locations) or ():
            if found := shutil.which("postgres", path=f"{folder}/pginstall/bin"):
                return Path(found)
        return on_path("postgres", *map(str, Path("/usr/lib/postgresql").glob("*/bin")))

    def _initialise(self) -> None:
        self._bin = self._executable_binaries()
        options = (
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
            "--no-sync",
        )
        self._run(
            f"{self._bin}/initdb", f"--pgdata={self.data}", f"--username={self.user}", *options
        )
        create = "CREATE DATABASE delayq"
        self._run(
            f"{self._bin}/postgres",
            "--single",
            "-F",
            "-D",
            str(self.data),
            "postgres",
            stdin=create,
        )

    def _command(self) -> list[str]:
        # All but fsync stays on: what was committed outlives a kill, by the operating system's
        # cache.
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # files in the data directory: a kill leaves nothing behind
            "max_connections": 300,
            "fsync": "on" if self.durable else "off",
        }
        words = (word for name, value in options.items() for word in ("-c", f"{name}={value}"))
        return [f"{self._bin}/postgres", "-D", str(self.data), *words]

    def _serves(self, child: Child) -> bool:
        with suppress(OSError):
            status = (self.data / "postmaster.pid").read_text().split()
            return status[:1] == [str(child.pid)] and status[-1] == "ready"
        return False

    def _executable_binaries(self) -> Path:
        """For the user that the server runs as: what only root can reach (an environment below
        /root) is copied."""
        binary = self.binary()
        home = binary.parent.parent
        if in_reach(binary.parent):
            return binary.parent
        copy = self.folder / "packages" / "pgserver" / "pginstall"
        shutil.copytree(home, copy, symlinks=True)
        # Beside the package: found by a path relative to the binaries.
        shutil.copytree(home.parent.parent / "pgserver.libs", copy.parent.parent / "pgserver.libs")
        return copy / "bin"
