"""Holds claims back until Redis has the changes that the outbox kept while Redis was away."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..core.connections import close_all
from ..core.exceptions import DelayQError
from ..core.log import log_failure

logger = logging.getLogger("delayq.worker")

#: Claims wait for at most so many seconds. A database that does not answer delays no message for
#: longer.
MOST_SECONDS = 3.0
#: For so many seconds after that, while claims go on, the outbox is read every LATE_PACE seconds.
#: Another process may notice later than this one that Redis is back (its probe may still wait for a
#: SOCKET_TIMEOUT, 5 s by default), and keeps cancels until then.
LATE_SECONDS = 6.0
LATE_PACE = 0.1


class ClaimHold:
    """While Redis is away, the outbox keeps cancels and new due times. Without this hold, a worker
    could run a message before Redis knows that it is cancelled.

    The dispatcher asks must_wait() when Redis answers, and claims when it returns False.
    """

    def __init__(self, send: Callable[[float], None] | None, on_end: Callable[[], None]) -> None:
        self._send = send
        self._on_end = on_end
        self._newest: threading.Thread | None = None
        self._holder: threading.Thread | None = None
        """The thread for which claims wait."""
        self._until = 0.0
        self._stopped = threading.Event()
        self.needed = True
        """Whether the outbox may have changes for Redis: at the start, and after an outage."""

    def must_wait(self) -> bool:
        """Begin to send the changes if that is needed. Returns whether claims have to wait."""
        if self.needed:
            self.needed = False
            if self._send is not None and self._holder is None:
                self._until = time.monotonic() + MOST_SECONDS
                # A thread of its own, because the database may not answer.
                self._newest = self._holder = threading.Thread(
                    target=self._run, args=(self._send,), name="delayq-claim-hold", daemon=True
                )
                self._newest.start()
        return self._holder is not None and time.monotonic() < self._until

    def stop(self) -> None:
        """End the thread: the worker stops."""
        self._stopped.set()

    def _run(self, send: Callable[[float], None]) -> None:
        thread = threading.current_thread()
        try:
            send(MOST_SECONDS)
            self._release(thread)
            late_until = time.monotonic() + LATE_SECONDS
            while self._newest is thread and time.monotonic() < late_until:
                if self._stopped.wait(LATE_PACE):
                    break
                try:
                    send(LATE_PACE)
                except DelayQError:  # the next outage: the dispatcher notices, and begins again
                    continue
        except BaseException as error:
            log_failure(logger, error, "changes kept during the outage are left to the relay")
        finally:
            close_all()
            self._release(thread)

    def _release(self, thread: threading.Thread) -> None:
        if self._holder is thread:
            self._holder = None
            self._on_end()
