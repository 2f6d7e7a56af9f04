"""Runs one worker in this process, from the first signal handler to the exit code."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from types import FrameType
from typing import Any, NoReturn

from ...core.service import Service, Sleeper
from ..worker import Worker
from .console import Console
from .health import Address, probes
from .reloader import Reloader
from .supervisor import STOP_SIGNALS

logger = logging.getLogger("delayq.worker")

#: Seconds after its drain in which a process may join threads, and in which it may then run its
#: atexit handlers.
JOIN_SECONDS = 1.0
ATEXIT_SECONDS = 10.0
#: Seconds within which two signals are one. A terminal, or systemd, signals the supervisor and its
#: children alike.
SAME_SIGNAL = 0.5


class ExitCode(IntEnum):
    """What the shell, systemd and Kubernetes see."""

    OK = 0
    """Drained."""
    ERROR = 1
    """An unexpected error."""
    CONFIGURATION = 2
    """Wrong settings or options, or a server that would lose messages."""
    UNREACHABLE = 3
    """Redis could not be reached at the start."""
    ABANDONED = 4
    """Some tasks outlived the shutdown timeout; their messages run again."""
    STUCK = 6
    """Every thread, or every coroutine, ran a task beyond its max_runtime, or one coroutine blocked
    all others."""
    START_ANEW = -1
    """Not for the shell: the code has changed, and the command calls start_anew()."""


def run(
    worker: Worker,
    health_at: Address | None = None,
    reload: bool = False,
    metrics: Callable[[], bytes] | None = None,
) -> int:
    """Work until a signal, the end of --burst or --max-messages, or changed code; then drain.
    `metrics`: what the health port answers to Prometheus. Returns the exit code."""
    restart: list[bool] = []

    def changed() -> None:
        restart.append(True)
        worker.progress.wake()

    health = (
        contextlib.nullcontext()
        if health_at is None
        else probes(
            health_at,
            lambda: not worker.stuck,
            lambda: worker.ready,
            worker.figures,
            metrics,
        )
    )
    with (
        contextlib.closing(Console()) as console,
        _signals(worker.progress) as stop_requested,
        health,
    ):
        if reload:
            Reloader(changed).start()
        worker.start()
        worker.executor.warm_up(worker.options.topics)
        while not (stop_requested or restart or worker.finished or worker.stuck):
            worker.progress.wait(0.2 if not worker.options.burst else 0.005)
            console.summarise()
        stuck, begun = worker.stuck, time.monotonic()
        running = len(worker.pool.running) + len(worker.event_loop.running)
        waiting = worker.pool.buffered
        if running or waiting:
            logger.info(
                "draining: %d running, %d handed back (at most %.0f s)",
                running,
                waiting,
                worker.options.shutdown_timeout,
            )
        left, totals = worker.stop(), console.totals()
        took = time.monotonic() - begun
        logger.info("stopped in %.1f s · %s · %d abandoned", took, totals, left)
    if restart and not stop_requested:
        return ExitCode.START_ANEW
    if stuck:
        return ExitCode.STUCK
    return ExitCode.ABANDONED if left else ExitCode.OK


def run_services(
    services: Sequence[Service],
    burst: bool,
    health_at: Address | None = None,
    metrics: Callable[[], bytes] | None = None,
) -> int:
    """Host services without a worker until a signal, or with `burst` until they have no work.
    Returns the exit code."""
    progress = Sleeper()

    def ready() -> bool:
        return not stop_requested and all(service.alive for service in services)

    def figures() -> dict[str, Any]:
        return {service.name: service.figures for service in services}

    health = (
        contextlib.nullcontext()
        if health_at is None
        else probes(health_at, lambda: True, ready, figures, metrics)
    )
    with _signals(progress) as stop_requested, health:
        for service in services:
            service.start()
        while not stop_requested and (not burst or any(service.has_work for service in services)):
            progress.wait(0.2 if not burst else 0.01)
        for service in services:
            service.stop()
        for service in services:
            service.join(5.0)
    return ExitCode.OK


def _request(requested: list[float], number: int, progress: Sleeper) -> None:
    now = time.monotonic()
    if requested and now - requested[0] > SAME_SIGNAL:
        # A second signal ends the process at once: no drain, no atexit handlers that could wait.
        os.write(2, b"stopped at once; what was running runs again when its lease ends\n")
        os._exit(128 + number)
    requested.append(now)
    progress.wake()


@contextlib.contextmanager
def _signals(progress: Sleeper) -> Iterator[list[float]]:
    """TERM and INT ask to stop: gives the list of the times at which they came. USR2 prints the
    stack of every thread."""
    requested: list[float] = []

    def handle(number: int, frame: FrameType | None) -> None:
        _request(requested, number, progress)

    old = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    try:
        yield requested
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def make_sure_to_end(code: int) -> None:
    """From now on the process ends soon, whatever still runs in it.

    Python joins every thread that is no daemon: those of sync_to_async and of a task's own
    ThreadPoolExecutor, which may still run when the shutdown timeout is over. A call that hangs
    would keep the process for ever.
    """
    joined = threading.Event()
    # The handler that is registered last is called first, when all threads are joined.
    atexit.register(joined.set)

    def flush() -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()

    def end() -> None:
        if joined.wait(JOIN_SECONDS):
            Sleeper().wait(ATEXIT_SECONDS)
        flushing = threading.Thread(target=flush, daemon=True)  # a lock of the log may be held
        flushing.start()
        flushing.join(JOIN_SECONDS)
        os._exit(code)

    threading.Thread(target=end, name="delayq-end", daemon=True).start()


def start_anew() -> NoReturn:
    """The same command in the same process, with the new code."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
