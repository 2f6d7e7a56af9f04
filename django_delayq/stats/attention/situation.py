"""What the conditions look at: figures of all topics, the workers, and what the database has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from django.db import Error
from django.utils import timezone

from ...core.alert_rules import ALERT_KINDS
from ...core.exceptions import StoreError
from ...core.times import from_ms
from ...models import AuditRun
from ...store.store import RedisStore
from .. import overview_sql
from ..figures import (
    DatabaseCounts,
    RecentDeaths,
    TopicFigures,
    count_dead_letters,
    read_database,
    read_topics,
)
from ..overview import WorkerStatus, statuses_of

#: Dead letters are counted over this time.
DEAD_WITHIN = timedelta(hours=1)
#: The lag is compared with that of the newest sample that is so old (ms).
COMPARED_MS, OLDEST_MS = 585_000, 720_000


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the conditions look at."""

    at: datetime
    """By Redis' clock."""
    problem: str = ""
    """Why Redis could not be read; then there is nothing of topics and workers."""
    database_problem: str = ""
    """Why the database could not be read; then there is nothing of it."""
    topics: Sequence[TopicFigures] = ()
    workers: Sequence[WorkerStatus] = ()
    lag_before: Mapping[str, float] = field(default_factory=dict)
    """The lag (seconds) of each topic about ten minutes ago, where it is known."""
    database: DatabaseCounts = field(default_factory=DatabaseCounts)
    dead: Mapping[str, RecentDeaths] = field(default_factory=dict)
    """What died in each topic within DEAD_WITHIN."""
    findings: int = 0
    """Of the newest audit."""


def read_situation(store: RedisStore, kinds: Collection[str] = frozenset(ALERT_KINDS)) -> Situation:
    """What these kinds of conditions look at. Six round trips and a few short queries at most."""
    found: dict[str, Any] = {"at": timezone.now()}
    try:
        heartbeats, quiet = store.workers.heartbeats_and_quiet()
        now_ms = store.clock_ms()
        found |= {
            "at": from_ms(now_ms),
            "topics": read_topics(store),
            "workers": statuses_of(heartbeats, quiet, now_ms),
        }
        before = store.queries.sample_between(now_ms - OLDEST_MS, now_ms - COMPARED_MS)
        if before is not None:
            found["lag_before"] = {topic: one["lag"] for topic, one in before.topics.items()}
    except StoreError as error:
        found["problem"] = error.problem
    try:
        found["database"] = read_database()
        if "dead" in kinds:
            found["dead"] = count_dead_letters(DEAD_WITHIN)
        if "audit" in kinds and (newest := AuditRun.objects.order_by("-pk").first()):
            found["findings"] = newest.findings
    except Error as error:
        found["database_problem"] = overview_sql.problem_of(error)
    return Situation(**found)


def only_topics(situation: Situation, topics: Collection[str]) -> Situation:
    """The situation of these topics alone, without the figures of all topics together."""
    workers = [
        replace(
            worker,
            topics=[topic for topic in worker.topics if topic in topics],
            tasks=[task for task in worker.tasks if task.topic in topics],
        )
        for worker in situation.workers
    ]
    counts = situation.database
    return replace(
        situation,
        topics=[row for row in situation.topics if row.topic in topics],
        workers=[worker for worker in workers if worker.topics],
        database=DatabaseCounts(
            outbox=_of_topics(counts.outbox, topics),
            dead_letters=_of_topics(counts.dead_letters, topics),
        ),
        dead={topic: dead for topic, dead in situation.dead.items() if topic in topics},
        findings=0,
    )


def _of_topics(counts: Counter[str], topics: Collection[str]) -> Counter[str]:
    return Counter({topic: count for topic, count in counts.items() if topic in topics})
