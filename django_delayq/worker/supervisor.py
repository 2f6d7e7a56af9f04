"""Keeps several worker processes alive."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

from ..exceptions import DelayQError
from .service import Sleeper

logger = logging.getLogger("delayq.worker")

#: Wait before a process that died is replaced; doubles while it dies quickly, so that a bad deploy is no hot loop.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
QUICK_DEATH = 10.0
PR_SET_PDEATHSIG = 1
#: What asks to stop. Blocked around a fork, and from the line "Ready" until somebody handles it.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Forks `count` workers, replaces those that die, passes signals on. Must start before any thread."""

    def __init__(self, count: int, run_worker: Callable[[int], int]) -> None:
        self._count = count
        self._run_worker = run_worker
        self._children: dict[int, int] = {}
        self._begun: dict[int, float] = {}
        self._due: dict[int, float] = {}
        """Workers to start, and when."""
        self._pauses: dict[int, float] = {}
        self._codes: list[int] = []
        self._signals = 0
        self._sleeper = Sleeper()

    def run(self) -> int:
        """Until all workers have ended. Returns the highest exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        for number in STOP_SIGNALS:
            signal.signal(number, self._pass_on)
        self._due = dict.fromkeys(range(self._count), 0.0)
        self._start_due()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        while self._children or self._due:
            # Sleeps in the kernel while all is well; looks again and again while a replacement waits for its time.
            pid, status = os.waitpid(-1, os.WNOHANG if self._due else 0) if self._children else (0, 0)
            if pid:
                self._ended(pid, os.waitstatus_to_exitcode(status))
            else:
                self._sleeper.wait(0.1)
            self._start_due()
        return max(self._codes, default=0)

    def _start_due(self) -> None:
        """Start the workers whose time has come; none after a signal to stop."""
        # A signal must not find a child that is not yet in the list, nor reach it before it has handlers of its own:
        # the worker unblocks them once it has (runner.py).
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
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _die_with(parent)
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
        index = self._children.pop(pid)
        if code == 0 or self._signals:
            self._codes.append(code if code >= 0 else 128 - code)
            return
        lived = time.monotonic() - self._begun[index]
        pause = FIRST_PAUSE if lived > QUICK_DEATH else min(LONGEST_PAUSE, 2 * self._pauses.get(index, FIRST_PAUSE / 2))
        self._pauses[index] = pause
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        logger.error("worker process %d %s after %.1f s; a new one starts in %.1f s", pid, how, lived, pause)
        self._due[index] = time.monotonic() + pause

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, number)


def _die_with(parent: int) -> None:
    """Linux: end when the supervisor is killed, so that nobody works unseen."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
