"""Handlers of signals, for as long as a job runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def handled(numbers: Sequence[int], handler: Callable[..., object]) -> Iterator[None]:
    """With this handler of these signals, and then with those that were there. Only the main thread
    can install a handler: any other goes on without."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, old in zip(numbers, before, strict=True):
            signal.signal(number, old)
