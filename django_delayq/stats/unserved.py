"""Finds topics that have messages and no living worker, and warns of them in the log."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from django.db import Error

from ..core.service import Service
from ..outbox.existing import topics_of_outbox
from ..outbox.listing import CAP, count_outbox
from ..store.beats import is_alive
from ..store.queries import PartitionStats
from ..store.store import RedisStore
from ..store.topic_state import TopicStats, stats_of_topic
from ..tasks import registry

logger = logging.getLogger("delayq.worker")

#: Seconds between two lines of the log. Workers that start together have sent heartbeats by then.
INTERVAL = 60.0


class Unserved(NamedTuple):
    """A topic that no worker serves, and what waits in it."""

    stats: TopicStats
    outbox: int
    declared: bool
    """Whether this process' code declares it."""

    def __str__(self) -> str:
        stats, outbox = self.stats, self.outbox
        counts = f"{stats.delayed + stats.backlog:,} waiting, {stats.backlog:,} of them due"
        if stats.leased:  # by a worker that has ended, as none serves it
            counts += f", {stats.leased:,} held"
        if outbox:
            counts += f", {outbox:,}{'+' if outbox == CAP else ''} in the outbox"
        undeclared = "" if self.declared else " and no code here declares it"
        return f"{stats.topic}: {counts}; no worker serves it{undeclared}"


def unserved_topics(
    store: RedisStore, serving: Iterable[str] = (), *, outbox: bool = True
) -> Sequence[Unserved]:
    """Topics with messages that no living worker serves, without paused ones and without
    those that are consumed over HTTP. `serving`: the topics that the caller is about to serve.

    Two round trips to Redis; of the database only what waits in these topics. Raises
    StoreUnavailable.
    """
    partitions = store.topics.used_partitions()
    parts: dict[str, list[PartitionStats]] = defaultdict(list)
    for partition, part in zip(partitions, store.queries.all_stats(partitions), strict=True):
        parts[partition.topic].append(part)
    stats = {topic: stats_of_topic(topic, of_topic) for topic, of_topic in parts.items()}
    served = {*serving, *(topic for topic, figures in stats.items() if figures.paused)}
    now_ms = store.clock_ms()
    for beat in store.workers.heartbeats().values():
        if is_alive(beat, now_ms, 6):
            served.update(beat.get("topics", ()))
    rows = dict.fromkeys(stats.keys() - served, 0)
    if outbox:
        with suppress(Error):  # the database is away, or not migrated: others report that
            rows = {topic: count_outbox(topic) for topic in {*rows, *topics_of_outbox()} - served}
    known, is_for_api = registry.known_topics(), store.client.settings.is_for_api
    found = [
        Unserved(stats.get(topic) or stats_of_topic(topic, ()), rows[topic], topic in known)
        for topic in sorted(rows)
        if not is_for_api(topic)
    ]
    return [
        row
        for row in found
        if row.outbox or row.stats.delayed or row.stats.backlog or row.stats.leased
    ]


class UnservedWatch(Service):
    """Warns once a minute of the topics that no worker serves. One of all processes does it."""

    name = "unserved"
    interval = INTERVAL

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._begun = False

    def run_once(self) -> float:
        """Warn, unless another process has. The first run does nothing: other workers may not have
        sent a heartbeat yet."""
        if not self._begun:
            self._begun = True
        elif self._store.workers.acquire_lock(self.name, int(INTERVAL * 1000) - 5_000):
            for topic in unserved_topics(self._store):
                logger.warning("topic %s", topic)
        return self.interval
