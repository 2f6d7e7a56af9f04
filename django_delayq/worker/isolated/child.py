"""The program of a child process: loads the project, then runs one message after the other."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import NoReturn

import django
from django.conf import settings as django_settings

from ...core import signals
from ...core.conf import get_settings
from ...core.connections import close_broken, make_caches, note_connections
from ...core.message import task_code_of
from ...core.task_report import TaskProgress, TaskReport
from ...store import get_store
from ...store.keys import Partition
from ...store.lease import Lease
from ...tasks import registry
from ..executor import Executor
from ..outcome import Outcome, Result
from ..shared import Shared
from .frames import (
    Begun,
    Ended,
    Extended,
    Frame,
    FrameReader,
    LeaseEnded,
    Progressed,
    Ready,
    Run,
    Setup,
    send,
)

#: A child that has had nothing to do for so many seconds ends.
IDLE_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1


def main(channel_fd: int, stacks_fd: int, parent: int) -> None:
    """Serve the worker at the other end of the socket. The process ends with the worker."""
    # The kernel kills this process when the worker dies, also in the middle of C code. Other
    # systems than Linux do not know that: there the end of the socket has to do.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # The worker decides when a child ends: SIGTERM and Ctrl-C may reach both. Not SIG_IGN, which
    # the programs that a task starts would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    for fd in (channel_fd, stacks_fd):
        os.set_inheritable(fd, False)
    faulthandler.register(signal.SIGUSR2, file=stacks_fd, all_threads=True)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # when memory runs out: rather a child than its worker
    channel = socket.socket(fileno=channel_fd)
    reader = FrameReader(channel)
    frames = list(reader.read() or ())
    if not frames or not isinstance(setup := frames[0], Setup):
        return
    sys.argv[:] = setup.argv
    django.setup()
    mine = get_settings()
    if (mine.redis, mine.prefix) != (setup.redis, setup.prefix):
        from django.test.utils import override_settings

        here = getattr(django_settings, "DELAYQ", {})
        override_settings(DELAYQ={**here, "REDIS": setup.redis, "PREFIX": setup.prefix}).enable()
    Child(channel, reader, setup.worker).serve()


class Child:
    """Runs messages on the main thread, as libraries like it. Another thread hears the worker."""

    def __init__(self, channel: socket.socket, reader: FrameReader, worker: str) -> None:
        self._channel = channel
        self._reader = reader
        self._writing = threading.Lock()
        self._runs: SimpleQueue[Run] = SimpleQueue()
        self._lease: Lease | None = None
        self._ended: list[Outcome] = []
        shared = Shared(get_store(), get_settings(), worker, ())
        self._executor = Executor(shared, self._ended.append)

    def serve(self) -> None:
        """Until the worker hangs up, or has no work for a while."""
        make_caches()
        note_connections()
        threading.Thread(target=self._hear, name="delayq-child", daemon=True).start()
        self.send(Ready())
        while True:
            try:
                run = self._runs.get(timeout=IDLE_SECONDS)
            except Empty:
                return
            self.send(Begun())
            close_broken()  # the server may have closed a connection meanwhile
            ended = self._run(run)
            sys.stdout.flush()
            sys.stderr.flush()
            self.send(ended)

    def send(self, frame: Frame) -> None:
        """Tell the worker. Without a worker this process ends."""
        try:
            with self._writing:
                send(self._channel, frame)
        except OSError:
            _end()

    def _hear(self) -> None:
        while (frames := self._reader.read()) is not None:
            for frame in frames:
                if isinstance(frame, Run):
                    self._runs.put(frame)
                elif isinstance(frame, LeaseEnded) and (lease := self._lease) is not None:
                    lease.lost = True
        _end()

    def _run(self, run: Run) -> Ended:
        partition = Partition(run.topic, run.partition)
        lease = ChildLease(partition, run.id, run.record, run.entry, time.monotonic())
        lease.report = ChildReport(self)
        if task_code_of(run.record) not in registry.by_code:
            with suppress(ImportError):
                import_module(run.module)
        if task_code_of(run.record) not in registry.by_code and registry.find(run.task) is None:
            return Ended(
                Result.RELEASED.value,
                f"the child process does not find the task in {run.module}",
            )
        # The worker has sent this signal, and its receivers are here too.
        signals.started.receivers.clear()
        self._lease = lease
        self._executor.run(lease)
        self._lease = None
        outcome = self._ended.pop()
        return Ended(
            outcome.result.value,
            outcome.reason,
            outcome.error_class,
            outcome.error_message,
            outcome.traceback,
            outcome.delay_ms,
            lease.report.result,
        )


class ChildLease(Lease):
    """A lease that the worker keeps."""

    @property
    def ended(self) -> bool:
        """Whether the worker has said so."""
        return self.lost


class ChildReport(TaskReport):
    """What the task has to say goes to the worker at once: it may be killed at any moment."""

    def __init__(self, child: Child) -> None:
        super().__init__()
        self._child = child

    def keep_progress(self, progress: TaskProgress) -> None:
        """For the row of the archive."""
        super().keep_progress(progress)
        self._child.send(Progressed(progress))

    def allow(self, seconds: float) -> None:
        """For the worker, which would kill the run."""
        self._child.send(Extended(seconds))


def _end() -> NoReturn:
    """The worker is gone: end this process, with the programs that its task has started."""
    with suppress(OSError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
