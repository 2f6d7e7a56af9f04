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

#: Wait before a process that died is replaced; doubles while it dies quickly, so that a bad deploy
#: is no hot loop.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
QUICK_DEATH = 10.0
PR_SET_PDEATHSIG = 1
#: What asks to stop. Blocked around a fork, and from the line "Ready" until somebody handles it.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Forks `count` workers, replaces those that end, passes signals on. Must start before any
    thread.

    Workers that come to an end of their own (`finite`: --burst, --max-messages) are done with code
    0. All others are replaced whatever their code is: one that somebody has told to stop ends with
    0 too.
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
        self._signals = 0
        self._heard, self._told = socket.socketpair()
        for end in (self._heard, self._told):
            end.setblocking(False)

    def run(self) -> int:
        """Until all workers have ended. Returns the highest exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for number in (*STOP_SIGNALS, signal.SIGUSR2):
            signal.signal(number, self._pass_on)
        # A signal, also that of a child that has ended, leaves a byte: one that comes a moment
        # before we sleep in the kernel ends that sleep too. (In waitpid() it would be unheard until
        # the next worker ends.)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        self._due = dict.fromkeys(range(self._count), 0.0)
        self._start_due()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        while self._children or self._due:
            # Sleep until there is a signal, or until the next replacement is due.
            pause = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            if select.select([self._heard], [], [], pause)[0]:
                self._heard.recv(4096)
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
        if self._signals:
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
            # As process 1 of a container we inherit orphans: what a task had started, when its
            # worker was killed. They have to be waited for, and are none of our workers.
            return
        if (code == 0 and self._finite) or self._signals:
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
        self._signals += number in STOP_SIGNALS
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)
