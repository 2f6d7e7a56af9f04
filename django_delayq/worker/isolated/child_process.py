"""One child process, as its worker sees it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ...core.exceptions import ChildDied
from ...core.service import Sleeper
from .frames import Frame, FrameReader, Ready, Setup, send
from .process_memory import memory_of, memory_with_children

#: What a child runs. The text has nothing secret: everybody on the machine can read it.
PROGRAM = """\
import sys
sys.path[:] = {path!r}
from django_delayq.worker.isolated.child import main
main({channel}, {stacks}, {parent})
"""
#: Seconds that a child may take to load the project.
START_SECONDS = 120.0
#: Seconds to wait for the stacks of a child that hangs, and most bytes of them.
STACKS_SECONDS = 0.5
MOST_STACKS = 60_000


class ChildProcess:
    """A process of its own session, so that what its tasks have started ends with it.

    It is a new interpreter and no fork: a worker has threads, and a fork of a process with threads
    may inherit a lock that nobody opens.
    """

    def __init__(self, setup: Setup) -> None:
        ours, theirs = socket.socketpair()
        self._stacks, stacks = os.pipe()
        program = PROGRAM.format(
            path=list(map(str, sys.path)),
            channel=theirs.fileno(),
            stacks=stacks,
            parent=os.getpid(),
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), stacks),
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(self._stacks)
            raise
        finally:
            theirs.close()
            os.close(stacks)
        self._channel = ours
        self._reader = FrameReader(ours)
        self._ending = threading.Lock()
        self._is_reaped = False
        self.is_ready = False
        """Whether it has loaded the project."""
        self.is_running = False
        """Whether it has been given a message, and has not said how that has ended."""
        self.started_at = time.monotonic()
        self.runs = 0
        """How many messages it has run."""
        self.usual_memory = 0
        """Bytes that it had after its first run; 0 before."""
        self.send(setup)

    @property
    def pid(self) -> int:
        """Its process id, which is also that of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        with self._ending:
            if self._is_reaped:
                return False
            if not hasattr(os, "waitid"):
                return self._process.poll() is None
            # As long as nobody waits for it, no other process gets its number.
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    @property
    def own_memory(self) -> int:
        """Bytes of the process itself."""
        return memory_of(self.pid)

    @property
    def memory(self) -> int:
        """Bytes, with those of the programs that its task has started."""
        return memory_with_children(self.pid)

    def send(self, frame: Frame) -> None:
        """Tell it. A child that is gone is noticed by the next read."""
        with suppress(OSError):
            send(self._channel, frame)

    def read(self, seconds: float) -> Sequence[Frame]:
        """What it has said by now, or says within so many seconds. Raises ChildDied."""
        if select_one(self._channel.fileno(), seconds):
            frames = self._reader.read()
            if frames is None:
                raise ChildDied(self._how_it_ended())
            return frames
        # A process that the task has forked may keep the other end of the socket.
        if not self.alive:
            raise ChildDied(self._how_it_ended())
        return ()

    def look_ready(self, seconds: float) -> bool:
        """Whether it is ready; waits for it so long. Raises ChildDied when it cannot start."""
        try:
            if not self.is_ready:
                self.is_ready = any(isinstance(frame, Ready) for frame in self.read(seconds))
        except ChildDied as error:
            raise ChildDied(
                f"{error} It was loading the project: the output of the worker says why."
            ) from None
        if not self.is_ready and time.monotonic() - self.started_at > START_SECONDS:
            raise ChildDied(f"The child process was not ready within {START_SECONDS:.0f} s.")
        return self.is_ready

    def stacks(self) -> str:
        """Where each of its threads is now, also in the middle of C code. Empty when it does not
        answer."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGUSR2)
        text, until = b"", time.monotonic() + STACKS_SECONDS
        while len(text) < MOST_STACKS and (left := until - time.monotonic()) > 0:
            if not select_one(self._stacks, left):
                break
            part = os.read(self._stacks, 65_536)
            if not part:
                break
            text += part
            until = min(until, time.monotonic() + 0.05)  # the rest follows at once
        return text.decode("utf-8", "replace").strip()

    def kill(self) -> None:
        """End it at once, with all that its tasks have started, and wait for its end."""
        with self._ending:
            if self._is_reaped:
                return
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._is_reaped = True

    def close(self) -> None:
        """kill(), for the last one who uses it: other files may get the numbers of its pipes."""
        self.kill()
        self._channel.close()
        os.close(self._stacks)

    def _how_it_ended(self) -> str:
        until, sleeper = time.monotonic() + 1.0, Sleeper()
        while self.alive and time.monotonic() < until:  # its socket ends a moment before it
            sleeper.wait(0.005)
        was_alive = self.alive
        self.kill()
        if was_alive:
            return "The child process has closed its socket to the worker."
        code = self._process.returncode
        if code >= 0:
            return f"The child process has ended with exit code {code} before its task did."
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        why = " Perhaps the system has no memory left." if name == "SIGKILL" else ""
        return f"The child process was ended by {name}.{why}"


def select_one(fd: int, seconds: float) -> bool:
    """Whether there is something to read; waits for it so long. Not select(), which knows no
    numbers above 1,023."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
