"""Keeps several worker processes alive."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

from ...core.exceptions import DelayQError

logger = logging.getLogger("delayq.worker")

#: Seconds before a process that died is replaced. The wait doubles while it dies quickly, so that a
#: bad deploy is no hot loop.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
QUICK_DEATH = 10.0
PR_SET_PDEATHSIG = 1
#: Signals to stop. They are blocked around a fork, and from the line "Ready" until the handlers are
#: installed.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Forks `count` workers, replaces those that end, passes signals on. Must start before any
    thread.

    `finite` workers (--burst, --max-messages) end by themselves with code 0, and are not replaced
    then. All others are replaced whatever their code is: a signal to one worker alone also ends it
    with code 0.
    """

    def __init__(self, count: int, run_worker: Callable[[int], int], finite: bool = False) -> None:
        self._count = count
        self._run_worker = run_worker
        self._finite = finite
        self._children: dict[int, int] = {}
        self._begun: dict[int, float] = {}
        self._due: dict[int, float] = {}
        """Workers to start, and when."""
        self._pauses: dict[int, float] = {}
        self._codes: list[int] = []
        self._stopping = False
        self._wakeups, self._waker = socket.socketpair()
        for end in (self._wakeups, self._waker):
            end.setblocking(False)

    def run(self) -> int:
        """Run until all workers have ended. Returns the highest exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for number in (*STOP_SIGNALS, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        # Each signal, also SIGCHLD, writes a byte. So a signal that comes a moment before select()
        # ends that sleep too. With waitpid() it would be lost until the next worker ends.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._due = dict.fromkeys(range(self._count), 0.0)
        self._start_due()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        while self._children or self._due:
            # Sleep until there is a signal, or until the next replacement is due.
            pause = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            if select.select([self._wakeups], [], [], pause)[0]:
                self._wakeups.recv(4096)
            with contextlib.suppress(ChildProcessError):  # there are no children at all
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    self._ended(ended[0], os.waitstatus_to_exitcode(ended[1]))
            self._start_due()
        return max(self._codes, default=0)

    def _start_due(self) -> None:
        """Start the workers whose time has come; none after a signal to stop."""
        # A signal must not find a child that is not yet in the list, nor reach it before it has
        # handlers of its own: the worker unblocks them once it has (runner.py).
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        if self._stopping:
            self._due.clear()
        for index in [index for index, at in self._due.items() if at <= time.monotonic()]:
            del self._due[index]
            self._fork(index)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _fork(self, index: int) -> None:
        sys.stdout.flush()
        parent = os.getpid()
        try:
            pid = os.fork()
        # No memory, or too many processes: the workers that run must not end because of that.
        except OSError as error:
            pause = self._plan(index, 0.0)
            logger.error("no worker process can be started: %s; again in %.1f s", error, pause)
            return
        if pid == 0:
            code = 1
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the worker has its own answer
                if sys.platform == "linux":  # end when the supervisor is killed
                    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
                    if os.getppid() != parent:  # it ended before the line above
                        os._exit(1)
                code = self._run_worker(index)
            except DelayQError as error:
                logger.error("worker process %d cannot start: %s", os.getpid(), error)
            except Exception:
                logger.exception("worker process %d failed", os.getpid())
            finally:
                sys.stdout.flush()
                os._exit(code)
        self._children[pid] = index
        self._begun[index] = time.monotonic()

    def _ended(self, pid: int, code: int) -> None:
        index = self._children.pop(pid, None)
        if index is None:
            # As process 1 of a container we inherit orphans: processes that a task had started when
            # its worker was killed. We have to wait for them, but they are not our workers.
            return
        if (code == 0 and self._finite) or self._stopping:
            self._codes.append(code if code >= 0 else 128 - code)
            return
        lived = time.monotonic() - self._begun[index]
        pause = self._plan(index, lived)
        level = logging.ERROR if code else logging.WARNING
        how = f"ended with code {code}" if code else "has stopped (by a signal to it alone?)"
        if code < 0:
            names = {int(each): each.name for each in signal.Signals}  # no realtime signals
            how = f"was killed by {names.get(-code, f'signal {-code}')}"
        text = "worker process %d %s after %.1f s; a new one starts in %.1f s"
        logger.log(level, text, pid, how, lived, pause)

    def _plan(self, index: int, lived: float) -> float:
        """Start the worker after a pause, which is returned."""
        pause = FIRST_PAUSE
        if lived <= QUICK_DEATH:
            pause = min(LONGEST_PAUSE, 2 * self._pauses.get(index, FIRST_PAUSE / 2))
        self._pauses[index] = pause
        self._due[index] = time.monotonic() + pause
        return pause

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._stopping = self._stopping or number in STOP_SIGNALS
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)
