"""A database of the tests: on data of its own, stopped and started at will."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar

from tests.databases.processes import Child, in_reach, launched, not_root

# Apart from the ports of tests/servers.py, and like them below the ephemeral ones.
PORTS = range(5_000, 10_000)

START_TIMEOUT_SECONDS = 60.0


class Database(ABC):
    """A database in a folder of its own, which is removed at the end of `with`.

    Durable: it survives a power failure, at the price of an fsync for every commit. It survives a
    kill either way.
    """

    kind: ClassVar[str]
    engine: ClassVar[str]

    def __init__(self, durable: bool = False) -> None:
        self.durable = durable
        self.folder = _new_folder()

    @classmethod
    def missing(cls) -> str:
        """What to install for this kind; empty when it is there."""
        return ""

    def __enter__(self) -> Database:
        try:
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        self.stop(immediate=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    @abstractmethod
    def entry(self) -> dict[str, Any]:
        """What to put into DATABASES. Fit for JSON."""

    @abstractmethod
    def start(self) -> None:
        """Return once it serves: after stop() and kill() on the same data and the same address."""

    @abstractmethod
    def stop(self, immediate: bool = False) -> None:
        """End the server and keep its data. Immediate: it does not tidy up, and recovers at the
        next start."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL to every process of the server."""


class Sqlite(Database):
    """A file: there is no server to stop or kill."""

    kind = "sqlite"
    engine = "django.db.backends.sqlite3"

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "ENGINE": self.engine,
            "NAME": str(self.folder / "delayq.sqlite3"),
            "TEST": {"NAME": str(self.folder / "tests.sqlite3")},
            "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
        }

    def start(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)

    def stop(self, immediate: bool = False) -> None:
        """Nothing: the file stays."""

    def kill(self) -> None:
        """Nothing: the file stays."""


class _PortTakenError(RuntimeError):
    pass


class Server(Database):
    """A database that is a process, and listens on a TCP port of this host."""

    user: ClassVar[str]
    graceful: ClassVar[signal.Signals]
    immediate: ClassVar[signal.Signals]
    install: ClassVar[str]

    @classmethod
    @abstractmethod
    def _installed(cls) -> Path | None:
        """The program that is the server, as this machine has it."""

    @classmethod
    def find_binary(cls) -> Path | None:
        """The server of DELAYQ_TEST_KIND (as `make matrix` sets it), else the one installed."""
        given = os.environ.get(f"DELAYQ_TEST_{cls.kind.upper()}")
        return Path(given) if given else cls._installed()

    @classmethod
    def missing(cls) -> str:
        return "" if cls.find_binary() else f"no server for {cls.kind!r}: install {cls.install}"

    @classmethod
    def binary(cls) -> Path:
        """The same, or an error that says what to install."""
        if binary := cls.find_binary():
            return binary
        raise RuntimeError(cls.missing())

    def __init__(self, durable: bool = False) -> None:
        super().__init__(durable)
        self.port = 0
        self.data = self.folder / "data"
        self._log = self.folder / "server.log"
        self._child: Child | None = None

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "ENGINE": self.engine,
            "NAME": "delayq",
            "USER": self.user,
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return self._child.pid if self._child and self._child.runs() else None

    def start(self) -> None:
        if self.pid is not None:
            return
        if self.port:
            self._launch()
            return
        self.folder.mkdir(mode=0o700)
        if user := not_root().uid:
            os.chown(self.folder, user, not_root().gid)
        self._initialise()
        self._launch_on_a_free_port()

    def stop(self, immediate: bool = False) -> None:
        self._end(self.immediate if immediate else self.graceful)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    @abstractmethod
    def _initialise(self) -> None:
        """Make the data directory."""

    @abstractmethod
    def _command(self) -> list[str]:
        """What runs the server."""

    @abstractmethod
    def _serves(self, child: Child) -> bool:
        """Whether this process takes connections, and not another one that has its port."""

    def _run(self, *command: str, stdin: str = "") -> None:
        try:
            subprocess.run(
                launched(command, signal.SIGKILL, not_root()),
                cwd=self.folder,
                input=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{command[0]} failed:\n{error.stdout}") from error

    def _launch_on_a_free_port(self) -> None:
        """The server tries the port itself: asking first whether it is free would be a race."""
        for _ in range(20):
            self.port = secrets.choice(PORTS)
            with suppress(_PortTakenError):
                return self._launch()
        self.port = 0
        raise RuntimeError("no free port was found in 20 tries")

    def _launch(self) -> None:
        before = self._log.stat().st_size if self._log.exists() else 0
        child = self._child = Child(
            launched(self._command(), self.immediate, not_root()), self._log
        )
        deadline = monotonic() + START_TIMEOUT_SECONDS
        while not self._serves(child):
            if child.wait(0.005) or monotonic() > deadline:
                self.kill()
                said = self._log.read_bytes()[before:].decode(errors="replace")
                problem = _PortTakenError if "Address already in use" in said else RuntimeError
                raise problem(f"{self.kind} did not start:\n{said[-2000:]}")

    def _end(self, how: signal.Signals) -> None:
        if self._child is not None:
            self._child.end(how)
            self._child = None


def on_path(name: str, *more: str) -> Path | None:
    """Where the program is, also in these folders."""
    found = shutil.which(name, path=os.pathsep.join([*os.get_exec_path(), *more]))
    return Path(found) if found else None


def _new_folder() -> Path:
    """A new name, created by start(), short enough for a socket in it, and where another user than
    root gets to."""
    folder = Path(tempfile.gettempdir())
    if len(os.fsencode(folder)) > 70 or not in_reach(folder):
        folder = Path("/tmp")
    return folder / f"delayq-db-{secrets.token_hex(6)}"
