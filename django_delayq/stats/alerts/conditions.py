"""What the rules of ALERTS find wrong now. `delayq check` shows the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from ...core.alert_rules import ALERT_KINDS, AlertRule
from ...core.exceptions import StoreError
from ...core.present import counted
from ...core.times import in_words
from ...models import AuditRun
from ...store.store import RedisStore
from ..figures import DatabaseCounts, TopicFigures, count_dead_letters, read_database, read_topics

#: Dead letters are counted over this time.
DEAD_WITHIN = timedelta(hours=1)


class Breach(NamedTuple):
    """A rule that holds, in one topic or in all."""

    rule: AlertRule
    topic: str
    """Empty for what is not about one topic."""
    value: float
    words: str


@dataclass(frozen=True, kw_only=True)
class AlertFigures:
    """What the rules compare with their limits."""

    problem: str = ""
    """Why Redis could not be read; then there is nothing of topics."""
    topics: Sequence[TopicFigures] = ()
    database: DatabaseCounts = field(default_factory=DatabaseCounts)
    dead: Counter[str] = field(default_factory=Counter)
    """Messages of each topic that died within DEAD_WITHIN."""
    findings: int = 0
    """Of the newest audit."""


def read_figures(store: RedisStore, rules: Sequence[AlertRule]) -> AlertFigures:
    """The figures that these rules need. Raises django.db.Error."""
    kinds = {rule.kind for rule in rules}
    topics: Sequence[TopicFigures] = ()
    problem = ""
    try:
        topics = read_topics(store)
    except StoreError as error:
        problem = error.problem
    newest = AuditRun.objects.order_by("-pk").first() if "audit" in kinds else None
    return AlertFigures(
        problem=problem,
        topics=topics,
        database=read_database() if kinds & {"outbox", "unserved"} else DatabaseCounts(),
        dead=count_dead_letters(DEAD_WITHIN) if "dead" in kinds else Counter(),
        findings=newest.findings if newest else 0,
    )


def is_known(rule: AlertRule, figures: AlertFigures) -> bool:
    """Whether the figures say anything of the rule. While Redis is away, nothing is known of what
    only Redis knows: those alerts neither begin nor end."""
    return not figures.problem or rule.kind in ("redis", "outbox", "dead", "audit")


def breaches(rules: Sequence[AlertRule], figures: AlertFigures) -> list[Breach]:
    """All that is wrong by the rules."""
    found = []
    for rule in rules:
        if not is_known(rule, figures):
            continue
        unit = ALERT_KINDS[rule.kind]
        limit = in_words(rule.limit) if unit == "duration" else f"{rule.limit:,.0f}"
        suffix = f" (limit {limit})" if unit else ""
        found += [
            Breach(rule, topic, value, words + suffix)
            for topic, value, words in _VALUES[rule.kind](rule, figures)
            if value >= rule.limit
        ]
    return found


# What each kind measures: topic, value, and the value in words

Values = Iterator[tuple[str, float, str]]


def _topics(rule: AlertRule, figures: AlertFigures) -> list[TopicFigures]:
    return [row for row in figures.topics if not rule.topics or row.topic in rule.topics]


def _backlogs(rule: AlertRule, figures: AlertFigures) -> Values:
    for row in _topics(rule, figures):
        yield row.topic, row.ready, counted(row.ready, "due message")


def _lags(rule: AlertRule, figures: AlertFigures) -> Values:
    for row in _topics(rule, figures):
        if not row.paused:
            yield row.topic, row.lag, f"lag {in_words(row.lag)}"


def _dead(rule: AlertRule, figures: AlertFigures) -> Values:
    for topic, count in sorted(figures.dead.items()):
        if not rule.topics or topic in rule.topics:
            yield topic, count, f"{counted(count, 'dead letter')} in an hour"


def _unserved(rule: AlertRule, figures: AlertFigures) -> Values:
    for row in _topics(rule, figures):
        waiting = row.delayed + row.ready + row.leased + figures.database.outbox[row.topic]
        if not row.workers and not row.paused:
            yield row.topic, waiting, "messages wait and no worker serves the topic"


def _archive_lag(rule: AlertRule, figures: AlertFigures) -> Values:
    worst = max(_topics(rule, figures), key=lambda row: row.archive_lag, default=None)
    if worst is not None:
        words = f"the archive of {worst.topic} is {in_words(worst.archive_lag)} behind"
        yield "", worst.archive_lag, words


def _outbox(rule: AlertRule, figures: AlertFigures) -> Values:
    rows = figures.database.outbox
    count = sum(rows[topic] for topic in rule.topics or rows)
    yield "", count, f"{counted(count, 'message')} in the outbox"


def _audit(rule: AlertRule, figures: AlertFigures) -> Values:
    yield "", figures.findings, f"the last audit has {counted(figures.findings, 'finding')}"


def _redis(rule: AlertRule, figures: AlertFigures) -> Values:
    yield "", int(bool(figures.problem)), figures.problem


_VALUES: Mapping[str, Callable[[AlertRule, AlertFigures], Values]] = {
    "backlog": _backlogs,
    "lag": _lags,
    "dead": _dead,
    "unserved": _unserved,
    "archive_lag": _archive_lag,
    "outbox": _outbox,
    "audit": _audit,
    "redis": _redis,
}
