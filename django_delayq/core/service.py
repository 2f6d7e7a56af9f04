"""The one loop and the one interruptible sleep of everything that runs in the background."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from .connections import close_all, close_broken
from .exceptions import DelayQError
from .log import log_failure

logger = logging.getLogger("delayq.worker")


class Sleeper:
    """A sleep that wake() ends. A bare lock: half the cost of a threading.Event, and never
    allocates."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self, seconds: float) -> None:
        """Sleep until wake(), at most so long. Returns at once if wake() was called before."""
        self._lock.acquire(timeout=max(0.0, min(seconds, 3600.0)))

    def wake(self) -> None:
        """End the sleep, or the next one."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # somebody else woke it between the two lines
                return


class Service:
    """A thread that calls run_once() until it is stopped."""

    name = "service"
    interval = 1.0
    """Seconds of sleep after a run that found nothing more to do."""
    reports_outages = False
    """Whether it logs that Redis is away. One service does it, once, because all of them notice."""

    def __init__(self) -> None:
        self.sleeper = Sleeper()
        self.stopping = False
        self._thread: threading.Thread | None = None

    def run_once(self) -> float:
        """Do what is due and return how many seconds to sleep: 0 when there is more to do."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def has_work(self) -> bool:
        """Whether there is work that `run_delayq --burst` should wait for."""
        return False

    @property
    def figures(self) -> dict[str, Any]:
        """Figures about its work, for heartbeats and the health port."""
        return {}

    def messages_ended(self) -> None:
        """Called when messages have ended: there may be something to do."""

    def start(self) -> None:
        """Begin the loop in a thread."""
        self._thread = threading.Thread(target=self._work, name=f"delayq-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current run."""
        self.stopping = True
        self.sleeper.wake()

    def join(self, seconds: float) -> None:
        """Wait for the loop to end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, seconds))

    def _work(self) -> None:
        failures = 0
        try:
            while not self.stopping:
                try:
                    pause, failures = self.run_once(), 0
                except DelayQError as error:
                    failures += 1
                    # Jitter: many workers come back to one server.
                    pause = min(1.0, 0.05 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)
                    is_news = failures == 1 and self.reports_outages and not self.stopping
                    level = logging.WARNING if is_news else logging.DEBUG
                    logger.log(level, "%s: %s", self.name, error)
                # Also what a receiver of signals raises to end the program.
                except BaseException as error:
                    failures += 1
                    pause = min(5.0, 0.1 * 2 ** min(failures, 10))
                    text = "%s failed; it tries again in %.1f s"
                    log_failure(logger, error, text, self.name, pause)
                close_broken()  # receivers of signals may use the database
                self.sleeper.wait(pause)
        finally:
            close_all()
