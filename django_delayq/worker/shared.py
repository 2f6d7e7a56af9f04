"""What the parts of one worker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.conf import Settings
from ..store.clock import ServerClock
from ..store.lease import Lease
from ..store.store import RedisStore

#: lease, what runs the task, what gives the time of its end (ms) and the archive's detail (JSON).
PerformOnce = Callable[[Lease, Callable[[], object], Callable[[], tuple[int, bytes]]], None]


@dataclass(frozen=True, eq=False)
class Shared:
    """Passed to every part, instead of globals."""

    store: RedisStore
    settings: Settings
    name: str
    """This worker, for heartbeats and the archive: host:pid:random."""
    topics: tuple[str, ...]
    perform_once: PerformOnce | None = None
    """Runs a task in the transaction that archives it. Whoever knows SQL brings it along."""
    before_claims: Callable[[float], None] | None = None
    """Tells Redis, in so many seconds at the most, what it has yet to hear. Whoever knows SQL
    brings it along."""
    clock: ServerClock = field(default_factory=ServerClock)
    held: set[Lease] = field(default_factory=set)
    """Every lease that is claimed and not settled. Added to by the dispatcher, removed from by the
    settler."""
