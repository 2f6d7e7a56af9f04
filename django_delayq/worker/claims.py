"""Claims from a topic as its limits want: those of the settings, and those of the tasks that are
declared."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from ..core.conf import Settings, TopicSettings
from ..core.limits import LimitRule, TopicLimits
from ..store.keys import Partition
from ..store.store import Claimed, RedisStore
from ..tasks import registry

logger = logging.getLogger("delayq.worker")

#: For a topic that has no limit any more, and messages that a limit holds back.
NO_LIMITS = TopicLimits()


def limits_by_topic(settings: Settings) -> dict[str, TopicLimits]:
    """The limits of each topic that has any. Claims of all others know nothing of limits."""
    rules: dict[str, dict[bytes, LimitRule]] = {}
    for task in registry.by_name.values():
        options = task.definition.options
        if options.rule != LimitRule():
            rules.setdefault(options.topic, {})[task.definition.code] = options.rule
    found: dict[str, TopicLimits] = {}
    for name in {*rules, *settings.topics}:
        topic = settings.topics.get(name, TopicSettings())
        limits = TopicLimits(topic.rule, topic.release_rate, rules.get(name, {}))
        if limits != NO_LIMITS:
            found[name] = limits
    return found


class Claims:
    """Knows which topics have limits."""

    def __init__(self, store: RedisStore, settings: Settings) -> None:
        self._store = store
        self._limits = limits_by_topic(settings)
        self._holding: set[Partition] = set()
        """Partitions without limits where messages still wait for one."""
        self._reported: set[str] = set()
        self._finished_limit = settings.finished_limit
        self._unarchived: set[Partition] = set()

    def claim(self, partition: Partition, limit: int, token: bytes) -> Claimed:
        """Claim up to `limit` due messages, as far as the limits of the topic let them start."""
        limits = self._limits.get(partition.topic)
        if limits is None and partition not in self._holding:
            claimed = self._store.claim(partition, limit, token)
        else:
            claimed = self._store.claim_limited(partition, limit, token, limits or NO_LIMITS)
        if not claimed.unarchived:
            self._unarchived.discard(partition)
        elif partition not in self._unarchived:
            self._unarchived.add(partition)
            logger.error(
                "%s holds %d finished messages (FINISHED_LIMIT) and waits for the archiver. Check "
                "that the database is up, and that a run_delayq archives.",
                partition,
                self._finished_limit,
            )
        return claimed

    def is_limited(self, partition: Partition) -> bool:
        """Whether a limit may hold messages back there that are due."""
        return partition.topic in self._limits or partition in self._holding

    def served(self, topic: str) -> Sequence[Partition]:
        """The partitions of the topic to claim from. A limit counts in one partition: those that
        the topic had before it had a limit are left out."""
        partitions = self._store.partitions.all(topic)
        limits = self._limits.get(topic)
        if limits is None or not limits.holds_back or len(partitions) == 1:
            return partitions
        if topic not in self._reported:
            self._reported.add(topic)
            logger.error(
                "Topic %s has a limit, and had %d partitions before. What waits in all but the "
                "first is not claimed: move it to a topic without a limit (manage.py delayq move).",
                topic,
                len(partitions),
            )
        return partitions[:1]

    def find_held_back(self, partitions: Iterable[Partition]) -> None:
        """Find the partitions whose topics have no limit any more, and which still hold messages
        back."""
        free = [partition for partition in partitions if partition.topic not in self._limits]
        self._holding = self._store.queries.holding_back(free)
