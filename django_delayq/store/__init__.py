"""All that knows Redis: one method and one Lua file (lua/) for each transition.

May import core only; nothing else imports redis. Start with store.py, then any file of lua/.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

from django.core.signals import setting_changed
from django.dispatch import receiver

from ..core.conf import Settings, get_settings
from ..core.exceptions import StoreError
from .connection import open_client
from .store import RedisStore


@lru_cache(maxsize=1)
def get_store() -> RedisStore:
    """The store that DELAYQ names. Its connections survive a fork: redis-py's pools notice a new
    pid."""
    return open_store(get_settings())


def open_store(settings: Settings) -> RedisStore:
    """A store of its own, for the caller to close. It is where the store has moved to: the Redis
    before may be off."""
    # A cluster's client asks the nodes when it is made: not here, so that a process starts, and
    # spills, without them.
    later = settings.redis.split("://")[0].endswith("+cluster")
    store = RedisStore(None if later else open_client(settings), settings)
    if settings.redis_next:
        with suppress(StoreError):  # a store that has moved refuses every call anyway
            store.client.has_arrived()
    return store


@receiver(setting_changed)
def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in ("DELAYQ", "CACHES"):
        if get_store.cache_info().currsize:
            get_store().client.stop()  # else a thread goes on asking a server that nobody uses
        get_store.cache_clear()


__all__ = ["get_store", "open_store", "RedisStore"]
