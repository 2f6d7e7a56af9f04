"""What the parts of one worker share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.conf import Settings
from ..store.clock import ServerClock
from ..store.lease import Lease
from ..store.store import RedisStore

#: Arguments: the leases of one call, a function that runs the task for those that have not run yet,
#: and a function that returns for each of them the time of its end (ms) and the detail for the
#: archive (JSON), or None when the message goes on.
PerformOnce = Callable[
    [
        Sequence[Lease],
        Callable[[Sequence[Lease]], object],
        Callable[[Lease], tuple[int, bytes] | None],
    ],
    None,
]


@dataclass(frozen=True, eq=False)
class Shared:
    """Passed to every part, instead of globals."""

    store: RedisStore
    settings: Settings
    name: str
    """This worker, for heartbeats and the archive: host:pid:random."""
    topics: tuple[str, ...]
    perform_once: PerformOnce | None = None
    """Runs a task in the transaction that archives it. The command passes it, because this package
    knows no SQL."""
    before_claims: Callable[[float], None] | None = None
    """Sends the changes that the outbox kept to Redis, in at most so many seconds. The command
    passes it, because this package knows no SQL."""
    clock: ServerClock = field(default_factory=ServerClock)
    held: set[Lease] = field(default_factory=set)
    """Every lease that is claimed and not settled. Added to by the dispatcher, removed from by the
    settler."""
