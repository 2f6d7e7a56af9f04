"""Workers among themselves: heartbeats, quiet workers, locks, and the samples of the minute."""

from __future__ import annotations

import json
from typing import Any

from . import keys
from .client import RedisClient

#: Milliseconds from one sample to the next, and how many samples are kept: those of a day.
SAMPLE_MS = 60_000
SAMPLES = 1_440
#: How long we keep the note that a worker is quiet. The worker has ended by then, and no other gets
#: its name.
QUIET_KEPT_MS = 86_400_000


class Workers:
    """The keys that all workers of a prefix share."""

    def __init__(self, client: RedisClient) -> None:
        self._client = client

    def beat(self, worker: str, heartbeat: str) -> None:
        """Write the heartbeat of a worker."""
        self._client.command("HSET", keys.workers_key(self._client.prefix), worker, heartbeat)

    def heartbeats(self) -> dict[str, dict[str, Any]]:
        """All heartbeats by worker, also old ones."""
        raw = self._client.command("HGETALL", keys.workers_key(self._client.prefix))
        return {name.decode(): json.loads(value) for name, value in raw.items()}

    def forget(self, *workers: str, ended: bool = True) -> None:
        """Remove heartbeats. `ended` is False for a worker that may only be cut off: it stays
        quiet."""
        self._client.command("HDEL", keys.workers_key(self._client.prefix), *workers)
        if ended:
            self._client.command("HDEL", keys.quiet_key(self._client.prefix), *workers)

    def quiet(self, worker: str) -> None:
        """The worker claims nothing from now on. Removes the notes of workers that are long
        gone."""
        key, at_ms = keys.quiet_key(self._client.prefix), int(self._client.clock_ms())
        quiet = self._client.command("HGETALL", key)
        if old := [name for name, at in quiet.items() if int(at) < at_ms - QUIET_KEPT_MS]:
            self._client.command("HDEL", key, *old)
        self._client.command("HSET", key, worker, at_ms)
        self._hint_workers()

    def unquiet(self, worker: str) -> None:
        """The worker claims again."""
        self._client.command("HDEL", keys.quiet_key(self._client.prefix), worker)
        self._hint_workers()

    def _hint_workers(self) -> None:
        self.hint(f"{keys.QUIET_HINT}:0:0")

    def hint_cancelled(self, message_id: bytes) -> None:
        """Tell the worker that runs the message that it was cancelled."""
        self.hint(f"{keys.CANCELLED_HINT}:{int.from_bytes(message_id, 'big')}:0")

    def tell_fleet(self, worker: str, load: int) -> None:
        """Tell all workers how busy one of them is (worker/fleet.py)."""
        self.hint(f"{keys.FLEET_HINT}{worker}:{load}:0")

    def hint(self, text: str) -> int:
        """Publish a hint: a partition and a due time in ms, or what stands in place of them.
        Returns how many subscriptions get it, of a cluster those of one node."""
        channel = keys.wakeups_channel(self._client.prefix)
        return int(self._client.command("PUBLISH", channel, text))

    def is_quiet(self, worker: str) -> bool:
        """Whether the worker is to claim nothing."""
        return bool(self._client.command("HEXISTS", keys.quiet_key(self._client.prefix), worker))

    def acquire_lock(self, name: str, ms: int) -> bool:
        """Try to take a lock for `ms`; True for exactly one process."""
        key = keys.lock_key(self._client.prefix, name)
        return bool(self._client.command("SET", key, 1, "NX", "PX", ms))

    def extend_lock(self, name: str, ms: int) -> None:
        """Set the lock for `ms` from now on. Does not check who holds it."""
        self._client.command("SET", keys.lock_key(self._client.prefix, name), 1, "PX", ms)

    def release_lock(self, name: str) -> None:
        """The next process may take the lock. By EXPIRE: the Redis user has that right anyway."""
        self._client.command("EXPIRE", keys.lock_key(self._client.prefix, name), 0)

    def add_sample(self, sample: str) -> None:
        """Add a sample (JSON). Samples older than about a day are removed."""
        key = keys.samples_key(self._client.prefix)
        self._client.command("XADD", key, "MAXLEN", "~", SAMPLES, "*", "sample", sample)
