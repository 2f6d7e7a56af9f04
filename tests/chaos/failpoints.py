"""Points at which a process kills itself. They lie around functions of the product, which knows
nothing of them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from operator import attrgetter
from typing import Any, NamedTuple

from tests.chaos import history

VARIABLE = "DELAYQ_CHAOS_KILL_AT"


class Point(NamedTuple):
    """Before or after a call of a function of a module."""

    module: str
    function: str
    after: bool
    probability: float
    """With which a call is the last one."""


POINTS = {
    # A worker, in the order in which a message passes them.
    "claimed": Point("store.store", "RedisStore.claim", True, 0.1),
    "before_run": Point("archive.exactly_once", "perform", False, 0.1),
    "before_insert": Point("archive.archive_rows", "archive_once", False, 0.1),
    "before_commit": Point("archive.archive_rows", "archive_once", True, 0.1),
    "after_commit": Point("archive.exactly_once", "perform", True, 0.1),
    "before_ack": Point("store.store", "RedisStore.ack", False, 0.1),
    "after_ack": Point("store.store", "RedisStore.ack", True, 0.1),
    # The archiver.
    "after_read": Point("archive.archiver", "store_entries", False, 0.4),
    "after_insert": Point("archive.archive_rows", "insert", True, 0.4),
    "after_close": Point("archive.closing", "close", True, 0.4),
    "before_remove": Point("store.finished", "FinishedStream.remove", False, 0.4),
    "after_remove": Point("store.finished", "FinishedStream.remove", True, 0.4),
    # The relay and the reconciler.
    "before_send": Point("outbox.relay", "send", False, 0.5),
    "after_send": Point("outbox.relay", "send", True, 0.5),
}


def arm() -> None:
    """Wrap the function of the point that the environment names."""
    name = os.environ.get(VARIABLE)
    if not name:
        return
    point = POINTS[name]
    *path, function = point.function.split(".")
    owner: Any = import_module(f"django_delayq.{point.module}")
    owner = attrgetter(".".join(path))(owner) if path else owner
    setattr(owner, function, _deadly(getattr(owner, function), name, point))


def _deadly(call: Callable[..., Any], name: str, point: Point) -> Callable[..., Any]:
    dice = random.Random()

    def perhaps_die() -> None:
        if dice.random() < point.probability:
            history.write(name, 0, time.time(), "killed")
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # the signal is on its way: this thread does nothing more

    @wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not point.after:
            perhaps_die()
        result = call(*args, **kwargs)
        if point.after:
            perhaps_die()
        return result

    return wrapper
