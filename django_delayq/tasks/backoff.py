"""How long to wait before the next attempt. Pure functions: failure number in, seconds out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta

#: Takes the number of failures so far (1 after the first) and returns seconds to wait.
Backoff = Callable[[int], float]


def exponential(
    base: float = 5.0, factor: float = 2.0, maximum: float = 3600.0, jitter: float = 0.25
) -> Backoff:
    """A wait that grows with each failure: `base * factor ** (failures - 1)` seconds, at most
    `maximum` seconds. `jitter` (0 to 1) spreads it: 0.25 means a quarter more or less.

    >>> exponential(base=2, jitter=0)(3)
    8.0
    """

    def wait(failures: int) -> float:
        # The exponent is bounded: 2.0 ** 1024 overflows, and the maximum is reached long before.
        seconds = min(maximum, base * factor ** min(failures - 1, 64))
        return seconds * (1 + jitter * (2 * random.random() - 1))

    return wait


def constant(seconds: float) -> Backoff:
    """The same wait after each failure, in seconds.

    >>> constant(30)(7)
    30
    """
    return lambda failures: seconds


def ladder(steps: Sequence[timedelta | float]) -> Backoff:
    """A wait for each failure in turn, as seconds or timedelta. The last one is repeated.

    >>> [ladder([0, 120, 600])(n) for n in (1, 2, 3, 9)]
    [0, 120, 600, 600]
    """
    waits = [step.total_seconds() if isinstance(step, timedelta) else step for step in steps]
    return lambda failures: waits[min(failures, len(waits)) - 1]
