"""Hands messages of isolated tasks to child processes, and kills those that go beyond a limit."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress

from ...core.exceptions import (
    ChildDied,
    IsolatedRunFailed,
    LeaseLost,
    MemoryLimitExceeded,
    RuntimeLimitExceeded,
    TaskFailedInChild,
)
from ...core.task_report import TaskReport
from ...core.times import in_words
from ...store.lease import Lease
from ..outcome import ClassifiedElsewhere, Result
from ..resolved import Resolved
from ..shared import Shared
from .child_process import ChildProcess
from .frames import Begun, Ended, Extended, LeaseEnded, Progressed, Run, Setup

#: A child is replaced after so many messages, and when it has grown by so many bytes since its
#: first one: what a task leaks ends with the child.
MOST_RUNS = 1_000
MOST_GROWTH = 128 << 20
#: Seconds between two looks at a run: at its memory, and at its lease. Memory grows by some MiB in
#: a millisecond at most.
LOOK_AT_MEMORY = 0.02
LOOK = 0.1
#: Children that are tried for a message that none of them has begun.
TRIES = 3


class Isolation:
    """The child processes of one worker: as many as messages run at a time, and kept for the next
    ones. Called by the threads of the pool, which wait for the end of a run."""

    def __init__(self, shared: Shared) -> None:
        self._setup = Setup(shared.name, sys.argv, shared.settings.redis, shared.settings.prefix)
        self._lock = threading.Lock()
        self._idle: list[ChildProcess] = []
        """The one that was busy last is the next to be taken: the others end when they are not
        needed."""
        self._busy: dict[Lease, ChildProcess] = {}
        self._is_stopping = False

    def warm_up(self) -> None:
        """Start a child before there is a message."""
        with self._lock, suppress(IsolatedRunFailed):
            self._idle.append(self._start())

    def run(self, lease: Lease, resolved: Resolved) -> None:
        """Run the message in a child. Raises what ends the attempt: ClassifiedElsewhere for what
        the task raised, IsolatedRunFailed, LeaseLost."""
        for _ in range(TRIES):
            child = self._take(lease)
            try:
                ended = self._run_in(child, lease, resolved)
            except _NotBegun:
                continue
            except ChildDied:
                if self._is_stopping:
                    raise ClassifiedElsewhere(result=Result.RELEASED) from None
                raise
            finally:
                self._put_back(child, lease)
            return self._apply(ended, lease.report or TaskReport())
        raise ChildDied("No child process has begun to run the message.")

    def stop(self) -> Collection[Lease]:
        """Kill all children. Returns the leases whose runs end by that: they are released."""
        with self._lock:
            self._is_stopping = True
            idle, self._idle = self._idle, []
            busy = dict(self._busy)
        for child in busy.values():
            child.kill()
        for child in idle:
            child.close()
        return busy

    # A run

    def _run_in(self, child: ChildProcess, lease: Lease, resolved: Resolved) -> Ended:
        while not child.look_ready(LOOK):
            if lease.lost:
                raise LeaseLost
        lease.started_at = time.monotonic()  # the task has not had the time until now
        lease.report = lease.report or TaskReport()
        partition = lease.partition
        task = resolved.task
        module = task.definition.func.__module__
        child.is_running = True
        child.send(
            Run(
                partition.topic,
                partition.number,
                lease.id,
                lease.record,
                lease.entry,
                module,
                task.name,
            )
        )
        watch = _RunWatch(child, lease, lease.report, resolved)
        try:
            while (ended := watch.poll()) is None:
                """One look after the other."""
        except ChildDied:
            if watch.has_begun:
                raise
            raise _NotBegun from None  # it had been idle for too long
        child.is_running = False
        child.runs += 1
        return ended

    def _take(self, lease: Lease) -> ChildProcess:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.alive:
                    self._busy[lease] = child
                    return child
                child.close()
            if self._is_stopping:
                raise ClassifiedElsewhere(result=Result.RELEASED)
            child = self._busy[lease] = self._start()
            return child

    def _put_back(self, child: ChildProcess, lease: Lease) -> None:
        """Keep the child for the next message, or end it. A new one starts in the place of one that
        has run anything: it loads the project while there is perhaps no message."""
        memory = child.own_memory
        child.usual_memory = child.usual_memory or memory
        is_worn = child.runs >= MOST_RUNS or memory - child.usual_memory > MOST_GROWTH
        is_broken = child.is_running or not child.alive
        with self._lock:
            del self._busy[lease]
            if not (is_worn or is_broken or self._is_stopping):
                self._idle.append(child)
                return
        child.close()
        # When none can be started, the next message says so: this one has its end already.
        with self._lock, suppress(IsolatedRunFailed):
            if child.is_ready and not self._is_stopping:
                self._idle.insert(0, self._start())

    def _start(self) -> ChildProcess:
        try:
            return ChildProcess(self._setup)
        except OSError as error:
            raise IsolatedRunFailed(f"No child process could be started: {error}.") from error

    def _apply(self, ended: Ended, report: TaskReport) -> None:
        result = Result(ended.result)
        if result is Result.RELEASED:
            raise IsolatedRunFailed(f"Not run: {ended.reason}.")
        report.result = ended.value
        if result is Result.ACKED:
            return
        error = None
        if ended.error_class and result is not Result.SNOOZED:
            error = TaskFailedInChild(
                ended.error_message, error_class=ended.error_class, traceback=ended.traceback
            )
        raise ClassifiedElsewhere(
            result=result,
            reason=ended.reason,
            error=error,
            error_class=ended.error_class,
            error_message=ended.error_message,
            traceback=ended.traceback,
            delay_ms=ended.delay_ms,
        )


class _NotBegun(Exception):
    """The child has ended before it took the message."""


class _RunWatch:
    """Looks at one run until it has ended. Raises what ends it before: then the child has to be
    killed."""

    def __init__(
        self, child: ChildProcess, lease: Lease, report: TaskReport, resolved: Resolved
    ) -> None:
        self._child = child
        self._lease = lease
        self._report = report
        self._deadline = lease.started_at + resolved.task.max_runtime_s
        self._memory_limit = resolved.task.options.memory_limit
        self._pause = LOOK if self._memory_limit is None else LOOK_AT_MEMORY
        self._look_at_memory_at = lease.started_at + LOOK_AT_MEMORY
        self._is_told = False
        self.has_begun = False

    def poll(self) -> Ended | None:
        """How it has ended; None when it goes on."""
        left = self._check_limits()
        for frame in self._child.read(min(self._pause, left)):
            if isinstance(frame, Ended):
                return frame
            if isinstance(frame, Begun):
                self.has_begun = True
            elif isinstance(frame, Progressed):
                self._report.keep_progress(frame.progress)
            elif isinstance(frame, Extended):
                self._report.allow(frame.seconds)
        return None

    def _check_limits(self) -> float:
        """Returns how many seconds are left."""
        if self._lease.lost:
            raise LeaseLost
        until = max(self._deadline, self._report.may_run_until)
        left = until - time.monotonic()
        if left <= 0:
            raise self._with_stacks(
                RuntimeLimitExceeded(
                    f"The run took more than the {in_words(until - self._lease.started_at)} that "
                    "it may take (max_runtime, extend()). Its child process was killed."
                )
            )
        if self._memory_limit is not None and time.monotonic() >= self._look_at_memory_at:
            self._look_at_memory_at = time.monotonic() + LOOK_AT_MEMORY
            memory = self._child.memory
            if memory > self._memory_limit:
                raise self._with_stacks(
                    MemoryLimitExceeded(
                        f"The child process had {memory >> 20:,} MiB of memory, more than its "
                        f"memory_limit of {self._memory_limit >> 20:,} MiB, and was killed."
                    )
                )
        if self._lease.ended and not self._is_told:
            self._is_told = True  # Redis may be away: perhaps the run counts all the same
            self._child.send(LeaseEnded())
        return left

    def _with_stacks(self, error: IsolatedRunFailed) -> IsolatedRunFailed:
        """The error, with what the child was doing."""
        error.stack = self._child.stacks()
        return error
