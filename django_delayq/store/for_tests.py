"""What only tests need of Redis: a clock that they can move, and the end of a prefix."""

from __future__ import annotations

import hashlib
from functools import lru_cache

from . import keys, scripts
from .client import BATCH, RedisClient
from .redis_errors import ERRORS
from .scripts import Script

#: The line that reads the clock, in each of the parts that bind the keys (shared/).
_CLOCK = b"local NOW_US = TIME[1] * 1000000 + TIME[2]\n"
#: The key of `keys.ahead_key`. One text for every test and every instant: a server keeps the
#: scripts that it has run.
_AHEAD = b"tonumber(redis.call('GET', string.match(META, '^[^:]+') .. ':ahead_us') or 0)"
_MOVABLE_CLOCK = _CLOCK.rstrip() + b" + " + _AHEAD + b"\n"


@lru_cache(maxsize=64)
def load_movable(name: str) -> Script:
    """The script of this name, with a clock that travel() moves."""
    text = scripts.load(name).text
    assert text.count(_CLOCK) == 1, f"{name}.lua does not read the clock as for_tests.py expects"
    text = text.replace(_CLOCK, _MOVABLE_CLOCK)
    return Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())


def travel(client: RedisClient, ahead_ms: int) -> None:
    """Let the clock of this client and of its prefix be so far ahead of Redis'."""
    client.load, client.ahead_ms = load_movable, ahead_ms
    client.command("SET", keys.ahead_key(client.prefix), ahead_ms * 1000)
    client.clock.sync(int(client.clock_ms() * 1000))


def delete_keys(client: RedisClient) -> None:
    """Delete all keys of the prefix."""
    try:
        found = list(client.redis.scan_iter(f"{client.prefix}:*", count=1000))
        for at in range(0, len(found), BATCH):
            client.redis.unlink(*found[at : at + BATCH])
    except ERRORS as error:
        raise client.failed(error) from error
