"""Hears the hints that producers publish. Only a hint: the dispatcher's sweep holds every guarantee
without it."""

from __future__ import annotations

from collections.abc import Callable

from ..core.service import Service
from ..store.hints import HintStream
from ..store.keys import Partition
from .shared import Shared


class Listener(Service):
    """Passes `topic:p:due_at_ms` on to the dispatcher."""

    name = "listener"

    def __init__(self, shared: Shared, hint: Callable[[Partition | None, float], None]) -> None:
        super().__init__()
        self._stream = HintStream(shared.store)
        self._hint = hint

    def run_once(self) -> float:
        """Wait for one hint. A new connection is a hint for everything: what was said meanwhile is
        lost."""
        if self._stream.connect():
            self._hint(None, 0)
        heard = self._stream.read(seconds=1.0)
        if heard is not None:
            self._hint(*heard)
        return 0.0
