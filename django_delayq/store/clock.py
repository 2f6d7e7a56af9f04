"""Redis' clock as a worker sees it between two calls."""

from __future__ import annotations

import time


class ServerClock:
    """Follows Redis' TIME by the monotonic clock. For sleeping and for display: scripts decide what
    is due."""

    def __init__(self) -> None:
        self._offset_ms: float | None = None

    def sync(self, now_us: int) -> None:
        """Take a reading that has just arrived. All are late by their way here, so the earliest is
        the best."""
        offset = now_us / 1000 - time.monotonic() * 1000
        # Half a percent of each later reading follows drift; a jump of the clock is taken at once.
        if self._offset_ms is None or offset > self._offset_ms or self._offset_ms - offset > 1000:
            self._offset_ms = offset
        else:
            self._offset_ms += (offset - self._offset_ms) * 0.005

    def forget(self) -> None:
        """Another server has another clock."""
        self._offset_ms = None

    @property
    def known(self) -> bool:
        """Whether there has been a reading."""
        return self._offset_ms is not None

    def now_ms(self) -> float:
        """Redis' time now; this machine's until the first reading."""
        return self.at_ms(time.monotonic())

    def at_ms(self, monotonic: float) -> float:
        """Redis' time at a local monotonic instant."""
        if self._offset_ms is None:
            return time.time() * 1000
        return monotonic * 1000 + self._offset_ms
