"""Processes that end with this one, also when it is killed (off Linux: unless it is)."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

import psutil

# As in testing/embedded.py, but it can give up root first: before prctl(), because a change of the
# user takes back what was asked of the kernel.
_LAUNCHER = """
import ctypes, os, sys
parent, at_its_end, user, group = map(int, sys.argv[1:5])
if user:
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, at_its_end)
if os.getppid() == parent:
    os.execvp(sys.argv[5], sys.argv[5:])
"""


class User(NamedTuple):
    uid: int = 0
    gid: int = 0


SAME = User()


@cache
def not_root() -> User:
    """Whom servers run as that refuse to run as root; the same user unless this is root."""
    if os.geteuid() != 0:
        return SAME
    nobody = pwd.getpwnam("nobody")
    return User(nobody.pw_uid, nobody.pw_gid)


def in_reach(folder: Path) -> bool:
    """Whether that user gets into the folder."""
    return not not_root().uid or all(
        part.stat().st_mode & 0o001 for part in (folder, *folder.parents)
    )


def launched(command: Sequence[str], at_our_end: signal.Signals, user: User = SAME) -> list[str]:
    """The command, sent this signal when the thread that runs it ends: that is what the kernel
    calls a parent."""
    words = map(str, (os.getpid(), int(at_our_end), *user))
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, *words, *command]


class Child:
    """A process in the background. The thread that forked it stays until it ends."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        started: Future[subprocess.Popen[bytes]] = Future()
        self._thread = threading.Thread(
            target=_fork_and_stay, args=(command, log, started), daemon=True
        )
        self._thread.start()
        self._process = started.result()
        self.pid = self._process.pid

    def runs(self) -> bool:
        return self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended within this time."""
        self._thread.join(seconds)
        return not self.runs()

    def end(self, how: signal.Signals, patience: float = 30.0) -> None:
        """Send the signal, and SIGKILL to what is left of it after a while. With SIGKILL, what it
        forked goes too."""
        if how != signal.SIGKILL:
            self._send(how)
            if self.wait(patience):
                return
        self._send(signal.SIGSTOP)  # lest it forks another one while they are counted
        others = self._descendants()
        self._send(signal.SIGKILL)
        self.wait()
        _kill(others)

    def _send(self, how: signal.Signals) -> None:
        if self.runs():  # else the number may be another process's by now
            with suppress(ProcessLookupError):
                os.kill(self.pid, how)

    def _descendants(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True) if self.runs() else []
        return []


def _fork_and_stay(
    command: Sequence[str], log: Path, started: Future[subprocess.Popen[bytes]]
) -> None:
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=log.parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal must not end it before those that use it
            )
    except BaseException as error:
        started.set_exception(error)
    else:
        started.set_result(process)
        process.wait()


def ended(process: psutil.Process) -> bool:
    """Also when nobody has asked for its exit code yet: in a container perhaps nobody ever will."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True


def _kill(processes: Iterable[psutil.Process], seconds: float = 10.0) -> None:
    deadline = monotonic() + seconds
    left = list(processes)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    while left := [process for process in left if not ended(process)]:
        if monotonic() > deadline:
            raise TimeoutError(f"not gone {seconds} s after SIGKILL: {left}")
        sleep(0.005)
