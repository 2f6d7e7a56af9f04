"""The loading half of the store: very many messages at once, behind a fence that lets none through
twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..core.exceptions import FenceChanged
from . import keys
from .keys import Partition
from .looking import Looking

#: Seconds for which the fence of a load is kept after the load was last at work: 30 days.
FENCE_LIFE = 30 * 86_400
#: Seconds after which a process says that again.
RENEW = 3_600.0

#: id, when, expires, record: see load.lua.
Loadable = tuple[bytes, str, str, bytes]


class Load(NamedTuple):
    """A bulk load, as its fence knows it."""

    job: str
    """Names it: part of a Redis key."""
    fingerprint: str
    """Of all that it adds. Under one name only one set of messages can be added."""
    notes: bool = False
    """Whether the fence notes the ids of what was kept because another message had them."""


class Loaded(NamedTuple):
    """What a call has done."""

    began_ms: int
    """When the load began in this partition, by Redis' clock: repeated ones keep it."""
    new: int = 0
    skipped: int = 0
    """Passed by the fence before."""
    same: int = 0
    """The very record was there."""
    kept: int = 0
    """Another message with this id is live, and was left as it is."""


class Loading(Looking):
    """Adds messages in bulk."""

    def load(
        self,
        partition: Partition,
        load: Load,
        split: int,
        tasks: Mapping[bytes, str],
        messages: Sequence[Loadable],
    ) -> Loaded:
        """- -> delayed for at most 500 messages of a split, ids ascending; without any, it only
        opens the fence.

        To call it again is safe. Raises FenceChanged.
        """
        return self.begin_load(partition, load, split, tasks, messages)()

    def begin_load(
        self,
        partition: Partition,
        load: Load,
        split: int,
        tasks: Mapping[bytes, str],
        messages: Sequence[Loadable],
    ) -> Callable[[], Loaded]:
        """Send a load; the function that is returned reads its answer and must be called, once."""
        args: list[Any] = [split, load.fingerprint, int(load.notes), len(tasks)]
        for code, name in tasks.items():
            args += (code.hex(), name)
        for message in messages:
            args += message
        fence = keys.fence_key(self.prefix, partition, load.job)
        answer = self.begin("load", (*keys.partition_keys(self.prefix, partition), fence), args)

        def read() -> Loaded:
            word, *rest = answer()
            if word == b"CHANGED":
                raise FenceChanged(f"{FenceChanged.meaning()} ({load.job}: {rest[0].decode()})")
            self._renew(fence)
            return Loaded(*map(int, rest))

        return read

    def fence(self, partition: Partition, job: str) -> dict[str, str]:
        """What the fence says: fingerprint, began (ms), new, same, kept; empty when there is
        none."""
        names = ("fingerprint", "began", "new", "same", "kept")
        values = self.command("HMGET", keys.fence_key(self.prefix, partition, job), *names)
        return {
            name: value.decode()
            for name, value in zip(names, values, strict=True)
            if value is not None
        }

    def kept_by(self, partition: Partition, job: str) -> Iterator[bytes]:
        """The ids that the load has left to other messages. Only of a load with `notes`."""
        key, cursor = keys.fence_key(self.prefix, partition, job), b"0"
        while True:
            cursor, found = self.command("HSCAN", key, cursor, "COUNT", 1000)
            names = found if isinstance(found, dict) else found[::2]
            yield from (name[5:] for name in names if name.startswith(b"kept:"))
            if int(cursor) == 0:
                return

    def _renew(self, fence: str) -> None:
        """The fence lives on. Not in the script: whoever writes is not to decide what Redis
        forgets, and when."""
        now = time.monotonic()
        if now - self._renewed.get(fence, -RENEW) >= RENEW:
            self.command("EXPIRE", fence, FENCE_LIFE)
            self._renewed[fence] = now

    @property
    def _renewed(self) -> dict[str, float]:
        """When the life of a fence was last prolonged from here."""
        renewed: dict[str, float] = self.__dict__.setdefault("_renewed_at", {})
        return renewed
