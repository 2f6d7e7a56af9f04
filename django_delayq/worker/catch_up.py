"""Before the first claim, and after each outage of Redis: lets what was said meanwhile be said
first."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..core.connections import close_all
from ..core.last_words import say_failure

logger = logging.getLogger("delayq.worker")

#: For so many seconds nothing is claimed at the most. A database that does not answer holds up no
#: message for longer.
MOST_SECONDS = 3.0


class CatchUp:
    """A cancel that the outbox keeps while Redis is away would come too late for a message that is
    due by then.

    The dispatcher begins it when Redis answers, and claims when it is over.
    """

    def __init__(self, tell: Callable[[float], None] | None, on_end: Callable[[], None]) -> None:
        self._tell = tell
        self._on_end = on_end
        self._thread: threading.Thread | None = None
        self._until = 0.0

    @property
    def holds(self) -> bool:
        """Whether claiming has to wait."""
        return self._thread is not None and time.monotonic() < self._until

    def begin(self) -> None:
        """Tell Redis what it has yet to hear, in a thread of its own: the database may not
        answer."""
        if self._tell is None or self._thread is not None:
            return
        self._until = time.monotonic() + MOST_SECONDS
        self._thread = threading.Thread(
            target=self._run, args=(self._tell,), name="delayq-catch-up", daemon=True
        )
        self._thread.start()

    def _run(self, tell: Callable[[float], None]) -> None:
        try:
            tell(MOST_SECONDS)
        except BaseException as error:
            say_failure(logger, error, "what was said while Redis was away is left to the relay")
        finally:
            close_all()
            self._thread = None
            self._on_end()
