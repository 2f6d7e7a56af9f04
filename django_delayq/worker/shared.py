"""What the parts of one worker share."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..conf import Settings
from ..store.lease import Lease
from ..store.redis import RedisStore
from .clock import ServerClock


@dataclass(frozen=True, eq=False)
class Shared:
    """Passed to every part, instead of globals."""

    store: RedisStore
    settings: Settings
    name: str
    """This worker, for heartbeats and the archive: host:pid:random."""
    topics: tuple[str, ...]
    clock: ServerClock = field(default_factory=ServerClock)
    held: set[Lease] = field(default_factory=set)
    """Every lease that is claimed and not settled. Added to by the dispatcher, removed from by the settler."""
