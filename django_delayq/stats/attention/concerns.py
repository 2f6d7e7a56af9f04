"""The present problems: measures that are above their limits, the worst first."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

from django.utils import timezone
from django.utils.translation import get_language

from ...core.alert_rules import AlertRule
from ...core.conf import get_settings
from ...store import get_store
from ...store.store import RedisStore
from ..overview import KEPT_AFTER_FAILURE, Source, reader_of
from ..overview_sql import kept_for
from .conditions import Measured, limit_in_words, measured
from .situation import Situation, only_topics, read_situation


class Urgency(IntEnum):
    """How bad it is."""

    WARNING = 1
    CRITICAL = 2


Limits = Mapping[str, Sequence[tuple[Urgency, float]]]
"""By kind; of several the first that is reached counts."""

#: From which values the pages, and `delayq check`, tell of something. Redis is not among them:
#: without it there is a banner instead of figures.
LIMITS: Limits = {
    "unserved": [(Urgency.CRITICAL, 1)],
    "saturated": [(Urgency.CRITICAL, 60)],
    "archive_limit": [(Urgency.CRITICAL, 80)],
    "worker_gone": [(Urgency.WARNING, 1)],
    "lag": [(Urgency.CRITICAL, 600), (Urgency.WARNING, 60)],
    "dead": [(Urgency.CRITICAL, 100), (Urgency.WARNING, 1)],
    "archive_lag": [(Urgency.WARNING, 60)],
    "relay_lag": [(Urgency.WARNING, 60)],
    "unarchivable": [(Urgency.WARNING, 1)],
    "audit": [(Urgency.WARNING, 1)],
}


@dataclass(frozen=True, kw_only=True)
class Concern:
    """Something that somebody should look at."""

    urgency: Urgency
    kind: str
    topics: Sequence[str]
    """The topics where it is so; empty for what is not about a topic."""
    words: str
    limit: str
    """The limit that it has reached, in words; empty for a kind without one."""
    rule: str = ""
    """Name of the rule of ALERTS that it breaks, or empty."""
    worker: str = ""
    """The worker that it is about."""
    measured: Measured


def concerns(
    situation: Situation, limits: Limits = LIMITS, rules: Iterable[AlertRule] = ()
) -> list[Concern]:
    """What reaches these limits or breaks these rules. A rule takes the place of the limit of the
    same kind in the same topic. The worst first, then in the order of the limits."""
    found: dict[tuple[str, str, str], Concern] = {}
    for kind, steps in limits.items():
        for measure in measured(kind, situation, at_least=min(limit for _, limit in steps)):
            for urgency, limit in steps:
                if measure.value >= limit:
                    found[measure.kind, measure.topic, measure.worker] = _concern(
                        urgency, measure, limit
                    )
                    break
    for rule in rules:
        for measure in broken(rule, situation):
            concern = _concern(Urgency.CRITICAL, measure, rule.limit)
            found[measure.kind, measure.topic, measure.worker] = replace(concern, rule=rule.name)
    return sorted(found.values(), key=lambda concern: -concern.urgency)


def broken(rule: AlertRule, situation: Situation) -> list[Measured]:
    """Where this rule of ALERTS is broken."""
    return list(measured(rule.kind, situation, rule.topics, at_least=rule.limit))


def attention(topics: Collection[str] | None = None) -> list[Concern]:
    """What the pages show of these topics, or of all: at most some seconds old, in the language
    that is active. Topics that have the same cause are one concern; a lag whose cause is known is
    left out."""
    store = get_store()
    with _lock:
        kept = _kept_of(reader_of(store), store)
    situation = kept.situation()
    if topics is not None:
        situation = only_topics(situation, topics)
    rules = [rule for rule in get_settings().alerts if rule.kind != "redis"]
    if topics is not None:  # a sum over all topics would tell of those that are hidden
        rules = [rule for rule in rules if rule.kind not in ("audit", "outbox")]
        return merged(concerns(situation, rules=rules))
    # Of thousands of topics this takes a while, and many requests ask for it.
    asked = get_language(), tuple(rules)
    if asked not in kept.found:
        kept.found[asked] = merged(concerns(situation, rules=rules))
    return kept.found[asked]


def merged(found: Iterable[Concern]) -> list[Concern]:
    """One concern for all topics with the same cause, without the lag of those whose cause is
    known."""
    every = list(found)
    explained = {t for c in every if c.kind in ("unserved", "saturated") for t in c.topics}
    causes: dict[tuple[str, str, str], tuple[Concern, list[str]]] = {}
    for concern in every:
        if concern.kind == "lag" and explained.issuperset(concern.topics):
            continue
        cause = concern.kind, concern.words, concern.rule
        causes.setdefault(cause, (concern, []))[1].extend(concern.topics)
    return [replace(concern, topics=topics) for concern, topics in causes.values()]


def concerns_of(topic: str, found: Iterable[Concern]) -> list[Concern]:
    """Those that are about a topic."""
    return [concern for concern in found if topic in concern.topics]


def _concern(urgency: Urgency, measure: Measured, limit: float) -> Concern:
    return Concern(
        urgency=urgency,
        kind=measure.kind,
        topics=[measure.topic] if measure.topic else measure.about,
        words=measure.words,
        limit=limit_in_words(measure.kind, limit),
        worker=measure.worker,
        measured=measure,
    )


class _KeptSituation:
    """The situation, read anew when it is some seconds old."""

    def __init__(self, overview: object, store: RedisStore) -> None:
        self._store = store
        self._source = Source()
        self._last = Situation(at=timezone.now())
        self.found: dict[tuple[str | None, tuple[AlertRule, ...]], list[Concern]] = {}
        """What is wrong by that, for each language and set of rules."""

    def situation(self) -> Situation:
        """The newest that there is."""
        self._source.refresh(self._read)
        return self._last

    def _read(self) -> None:
        began = time.monotonic()
        self._last, self.found = read_situation(self._store), {}
        took = time.monotonic() - began
        failed = bool(self._last.problem or self._last.database_problem)
        self._source.keep(KEPT_AFTER_FAILURE if failed else kept_for(took), "", took)


_lock = threading.Lock()
#: One beside the reader of the overview: who forgets that one forgets this one, too.
_kept_of = lru_cache(maxsize=1)(_KeptSituation)
