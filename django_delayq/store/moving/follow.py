"""Each process waits while the store moves, and changes over when the move is decided.

Redis refuses each call to a frozen store by WRONGTYPE, so nobody has to ask before a call. The
caller waits here, and makes the call again where the store is.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ...core.conf import Settings
from ...core.exceptions import DelayQError, StoreMoved, StoreUnavailable
from ..connection import RedisPy, close_client, mask, open_client
from ..redis_errors import ERRORS, translate
from .freeze import Move, decide, move_in, thaw

#: Seconds between two questions whether the move is decided.
ASK_INTERVAL = 0.01
#: A call that was refused at most this long before the end of an undone move is made again.
JUST_UNDONE_MS = 1_000


def next_settings(settings: Settings) -> Settings:
    """The settings as they are for the new store."""
    return dataclasses.replace(settings, redis=settings.redis_next)


def serving_client(redis_py: RedisPy, settings: Settings) -> RedisPy | None:
    """Wait until the move is decided, SOCKET_TIMEOUT at most.

    Returns the client of the store that serves now: this one after a move that was undone, or one
    of the new store. None when no move goes on: then the error has another cause. Raises
    StoreUnavailable: the move goes on, or the new store cannot be asked; and StoreMoved.
    """
    deadline = time.monotonic() + settings.socket_timeout
    while True:
        with asking(settings):
            move, now_ms = move_in(redis_py, settings.prefix), clock_ms(redis_py)
        if move.state == "moved":
            return _changed_over(move, settings)
        if move.state != "frozen":
            just_undone = move.state == "undone" and now_ms - move.at_ms <= JUST_UNDONE_MS
            time.sleep(ASK_INTERVAL)
            return redis_py if just_undone else None
        if now_ms > move.until_ms and settings.redis_next:
            if found := arrived(settings, move.id):
                return found
            with asking(settings):
                thaw(redis_py, settings.prefix, move, "undone", late=True)
        elif time.monotonic() > deadline:
            raise StoreUnavailable(
                f"The store at {mask(settings.redis)} is being moved to another Redis. Nothing "
                "was changed."
            )
        time.sleep(ASK_INTERVAL)


def arrived(settings: Settings, move_id: str = "") -> RedisPy | None:
    """A client of the new store when the store has moved there (by the move with this id), else
    None. Raises StoreUnavailable when it cannot be asked."""
    after = next_settings(settings)
    found = open_client(after)
    try:
        with asking(after):
            move = move_in(found, settings.prefix)
    except DelayQError:
        close_client(found)
        raise
    if move.state == "arrived" and move_id in ("", move.id):
        return found
    close_client(found)
    return None


def _changed_over(move: Move, settings: Settings) -> RedisPy:
    """A client of the new store. Who comes first writes there that the store has arrived: the
    old store may be gone before its next question."""
    if not settings.redis_next:
        raise StoreMoved
    after = next_settings(settings)
    found = open_client(after)
    with asking(after):
        state = decide(found, settings.prefix, move.id, "copied", "arrived")
    if state == "arrived":
        return found
    close_client(found)
    raise StoreMoved(
        f"The store has moved, and not to {mask(after.redis)}: nothing was changed. Correct "
        "DELAYQ['REDIS_NEXT'], and start the process again."
    )


def clock_ms(redis_py: RedisPy) -> float:
    """The clock of a server."""
    seconds, microseconds = redis_py.time()
    return float(seconds * 1000 + microseconds / 1000)


@contextmanager
def asking(settings: Settings) -> Iterator[None]:
    """Make errors of redis-py ours."""
    try:
        yield
    except ERRORS as error:
        raise translate(error, mask(settings.redis)) from error
