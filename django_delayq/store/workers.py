"""Workers among themselves: heartbeats, quiet workers, locks, and the samples of the minute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..core.exceptions import StoreError
from . import keys
from .beats import decode_beats
from .client import Read, RedisClient
from .redis_errors import ERRORS

#: Milliseconds from one sample to the next, and how many samples are kept: those of a day.
SAMPLE_MS = 60_000
SAMPLES = 1_440
#: Samples that are kept of each topic, and of how many topics at most each minute is. Of more
#: topics it is every tenth minute: a day of a topic's minutes takes 30 KB.
NEWEST, MOST_BY_MINUTE, MINUTES_APART = 13, 1_000, 10
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
        return decode_beats(self._client.command("HGETALL", keys.workers_key(self._client.prefix)))

    def heartbeats_and_quiet(self) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """All heartbeats, and the workers that are to claim nothing; one round trip."""
        prefix = self._client.prefix
        raw, quiet = self._client.read_all(
            [
                Read("HGETALL", None, (keys.workers_key(prefix),)),
                Read("HKEYS", None, (keys.quiet_key(prefix),)),
            ]
        )
        return decode_beats(raw), {name.decode() for name in quiet}

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

    def add_sample(self, at_ms: int, topics: Mapping[str, Mapping[str, float]]) -> None:
        """Note `finished` (a counter), `waiting` and `lag` of each topic at this instant. Samples
        older than about a day are removed.

        A topic has an entry of its own for each minute in which its figures have changed: topics
        in which nothing happens cost nothing.
        """
        prefix, redis_py = self._client.prefix, self._client.redis
        newest = self._client.command(
            "XREVRANGE", keys.newest_samples_key(prefix), "+", "-", "COUNT", 1
        )
        before = json.loads(newest[0][1][b"topics"]) if newest else {}
        rows = topics.values()
        together = {
            "at_ms": at_ms,
            "finished": sum(row["finished"] for row in rows),
            "waiting": sum(row["waiting"] for row in rows),
            "lag": max((row["lag"] for row in rows), default=0.0),
        }
        # Alone, and first: a store that is frozen for a move refuses it.
        sample = ("sample", json.dumps(together))
        self._add(keys.samples_key(prefix), SAMPLES, at_ms, *sample)
        self._add(
            keys.newest_samples_key(prefix), NEWEST, at_ms, "topics", json.dumps(dict(topics))
        )
        if len(topics) > MOST_BY_MINUTE and at_ms // SAMPLE_MS % MINUTES_APART:
            return
        try:
            pipeline = redis_py.pipeline(transaction=False)
            for topic, row in topics.items():
                if row != before.get(topic):
                    key = keys.topic_samples_key(prefix, topic)
                    fields = ("at", at_ms, "f", row["finished"], "w", row["waiting"])
                    lag = ("l", round(row["lag"], 1))
                    pipeline.execute_command(
                        "XADD", key, "MAXLEN", "~", SAMPLES, "*", *fields, *lag
                    )
                    pipeline.execute_command("EXPIRE", key, 2 * SAMPLES * SAMPLE_MS // 1000)
            pipeline.execute()
        except ERRORS as error:
            raise self._client.failed(error) from error

    def _add(self, key: str, most: int, at_ms: int, *fields: str) -> None:
        """An entry whose id is its instant: so they are found by time."""
        try:
            self._client.command("XADD", key, "MAXLEN", "~", most, at_ms, *fields)
        except StoreError as error:
            if "equal or smaller" not in str(error):
                raise
            # The clock of this Redis is behind that of the one before.
            self._client.command("XADD", key, "MAXLEN", "~", most, "*", *fields)
