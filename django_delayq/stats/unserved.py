"""Finds topics whose messages nobody runs: no living worker serves them, or no code declares them
any more."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from django.db import Error

from ..core.service import Service
from ..outbox.existing import topics_of_outbox
from ..outbox.listing import CAP, count_outbox
from ..store.queries import PartitionStats
from ..store.store import RedisStore
from ..store.topic_stats import lasting_pause
from ..tasks import registry
from ..worker.heartbeat import DEAD_AFTER

logger = logging.getLogger("delayq.worker")

#: Seconds between two lines of the log; workers that start together have said what they serve by
#: then.
INTERVAL = 60.0
TURN = "unserved"


class Unserved(NamedTuple):
    """One of these topics, and what waits in it."""

    topic: str
    waiting: int
    """In Redis, also what is due."""
    due: int
    held: int
    """Leased: by a worker that has ended, as none serves it."""
    outbox: int
    declared: bool
    """Whether this process' code declares it."""

    def __str__(self) -> str:
        counts = [f"{self.waiting:,} waiting", f"{self.due:,} of them due"]
        counts += [f"{self.held:,} held"] if self.held else []
        counts += (
            [f"{self.outbox:,}{'+' if self.outbox == CAP else ''} in the outbox"]
            if self.outbox
            else []
        )
        why = (
            "no worker serves it"
            if self.declared
            else "no worker serves it and no code here declares it"
        )
        return f"{self.topic}: {', '.join(counts)}; {why}"


def unserved_topics(
    store: RedisStore, serving: Iterable[str] = (), *, outbox: bool = True
) -> Sequence[Unserved]:
    """Topics with messages that no living worker serves, but for paused ones. `serving`: those that
    one is about to.

    Two round trips to Redis; of the database only what waits in these topics. Raises
    StoreUnavailable.
    """
    stats = _stats(store)
    silent = {
        *serving,
        *_served(store),
        *(topic for topic, parts in stats.items() if _is_paused(parts)),
    }
    rows = dict.fromkeys(stats.keys() - silent, 0)
    if outbox:
        with suppress(Error):  # it is away, or not migrated: others say so
            rows = {topic: count_outbox(topic) for topic in {*rows, *topics_of_outbox()} - silent}
    known = registry.known_topics()
    found = [
        _unserved(topic, stats.get(topic, ()), rows[topic], topic in known)
        for topic in sorted(rows)
    ]
    return [one for one in found if one.waiting or one.held or one.outbox]


def _served(store: RedisStore) -> set[str]:
    beats, now_ms = store.workers.heartbeats().values(), store.clock_ms()
    return {
        topic
        for beat in beats
        if now_ms - beat["at_ms"] <= DEAD_AFTER * 1000
        for topic in beat.get("topics", ())
    }


def _stats(store: RedisStore) -> Mapping[str, Sequence[PartitionStats]]:
    partitions = store.topics.used_partitions()
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    for partition, stats in zip(partitions, store.queries.all_stats(partitions), strict=True):
        parts[partition.topic].append(stats)
    return dict(parts)


def _is_paused(parts: Sequence[PartitionStats]) -> bool:
    return any(lasting_pause(part.meta.get("paused"), part.now_ms) for part in parts)


def _unserved(topic: str, parts: Sequence[PartitionStats], outbox: int, declared: bool) -> Unserved:
    return Unserved(
        topic=topic,
        waiting=sum(part.waiting for part in parts),
        due=sum(part.ready for part in parts),
        held=sum(part.leased for part in parts),
        outbox=outbox,
        declared=declared,
    )


class UnservedWatch(Service):
    """Says once a minute which topics nobody serves. One of all processes says it."""

    name = "unserved"
    interval = INTERVAL

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._begun = False

    def run_once(self) -> float:
        """Look, unless somebody has; not at the very start, when other workers have not said yet
        what they serve."""
        if not self._begun:
            self._begun = True
        elif self._store.workers.acquire_lock(TURN, int(INTERVAL * 1000) - 5_000):
            for one in unserved_topics(self._store):
                logger.warning("topic %s", one)
        return self.interval
