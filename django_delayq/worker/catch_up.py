"""Before the first claim, and after each outage of Redis: applies in Redis what the outbox has kept
meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..core.connections import close_all
from ..core.exceptions import DelayQError
from ..core.last_words import say_failure

logger = logging.getLogger("delayq.worker")

#: Claims wait for at most so many seconds. A database that does not answer holds up no message for
#: longer.
MOST_SECONDS = 3.0
#: For so many seconds after that, while claims go on, the outbox is read every LATE_PACE seconds.
#: Another process may notice later than this one that Redis is back (its probe may still wait for a
#: SOCKET_TIMEOUT, 5 s by default), and keeps cancels until then.
LATE_SECONDS = 6.0
LATE_PACE = 0.1


class CatchUp:
    """A cancel that the outbox keeps while Redis is away would come too late for a message that is
    due by then.

    The dispatcher begins it when Redis answers, and claims when it no longer holds.
    """

    def __init__(self, apply: Callable[[float], None] | None, on_end: Callable[[], None]) -> None:
        self._apply = apply
        self._on_end = on_end
        self._newest: threading.Thread | None = None
        self._holder: threading.Thread | None = None
        """The thread for which claims wait."""
        self._until = 0.0

    @property
    def holds(self) -> bool:
        """Whether claiming has to wait."""
        return self._holder is not None and time.monotonic() < self._until

    def begin(self) -> None:
        """Apply what is kept, in a thread of its own: the database may not answer."""
        if self._apply is None or self._holder is not None:
            return
        self._until = time.monotonic() + MOST_SECONDS
        thread = threading.Thread(
            target=self._run, args=(self._apply,), name="delayq-catch-up", daemon=True
        )
        self._newest = self._holder = thread
        thread.start()

    def _run(self, apply: Callable[[float], None]) -> None:
        thread = threading.current_thread()
        try:
            apply(MOST_SECONDS)
            self._release(thread)
            late_until = time.monotonic() + LATE_SECONDS
            while self._newest is thread and time.monotonic() < late_until:
                time.sleep(LATE_PACE)
                try:
                    apply(LATE_PACE)
                except DelayQError:  # the next outage: the dispatcher notices, and begins again
                    continue
        except BaseException as error:
            say_failure(logger, error, "the relay applies later what was kept while Redis was away")
        finally:
            close_all()
            self._release(thread)

    def _release(self, thread: threading.Thread) -> None:
        if self._holder is thread:
            self._holder = None
            self._on_end()
