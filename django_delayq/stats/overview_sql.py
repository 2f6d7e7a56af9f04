"""The queries of the overview: a few short ones, each bounded whatever the tables hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from django.db import Error, OperationalError, ProgrammingError, connections
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..models import ArchivedMessage, OutboxMessage, OutboxStatus, UnarchivableEntry
from .history import KeptForecast, newest_forecast
from .marks import ChartMark, read_marks

#: Open dead letters that are counted, the newest of all topics.
DEAD_CAP = 50_000
#: Waiting rows of the outbox that are counted, the nearest of all topics.
OUTBOX_CAP = 100_000
#: The newest runs of each topic, whose lateness is shown.
RUNS = 200
#: Topics whose lateness is read, those that have finished most: each takes a short walk along an
#: index. SQLite takes at most 500 in one statement.
TOPICS_AT_ONCE = 100
#: Older runs say nothing of now. They are dropped after the newest were found: a condition inside
#: would make the database walk along all rows.
RUNS_SINCE = timedelta(days=1)

MINUTE_MS = 60_000

#: Seconds for which an answer of the database is kept: fifty times as long as its queries took,
#: within these bounds.
KEPT, KEPT_SHARE, KEPT_AT_MOST = 5.0, 50.0, 60.0

_DEAD = """
SELECT topic, COUNT(*) FROM (
    SELECT topic FROM {archive}
    WHERE state = 'dead' AND replayed_at IS NULL AND discarded_at IS NULL
    ORDER BY finished_at DESC LIMIT {cap}
) AS newest GROUP BY topic"""

_OUTBOX = """
SELECT topic, minute, COUNT(*), MIN(due_at_ms) FROM (
    SELECT topic, due_at_ms,
    CASE WHEN due_at_ms < %s THEN due_at_ms - due_at_ms %% {minute} ELSE NULL END AS minute
    FROM {outbox} WHERE status = %s ORDER BY relay_at_ms LIMIT {cap}
) AS nearest GROUP BY topic, minute"""

_LATENESS = """
SELECT topic, lateness_ms FROM (
    SELECT topic, lateness_ms, finished_at FROM {archive}
    WHERE state = 'acked' AND topic = %s AND lateness_ms IS NOT NULL
    ORDER BY id DESC LIMIT {runs}
) AS newest WHERE finished_at >= %s"""


@dataclass(frozen=True, kw_only=True)
class DatabaseFigures:
    """What the overview shows of the database."""

    dead_letters: Counter[str] = field(default_factory=Counter)
    """Open ones by topic."""
    outbox: Counter[str] = field(default_factory=Counter)
    """Waiting rows by topic."""
    outbox_minutes: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Those of them that are due until the given instant, by topic and the beginning (ms) of their
    minute."""
    outbox_due_ms: Mapping[str, int] = field(default_factory=dict)
    """When the first waiting row of each topic is due."""
    lateness_ms: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Of the newest acked runs of each topic that are not older than RUNS_SINCE."""
    forecast: KeptForecast | None = None
    """The newest."""
    unarchivable: bool = False
    """Whether there are messages that the archive refused."""
    marks: Sequence[ChartMark] = ()
    """Of the time that the chart shows, the oldest first."""


def kept_for(took: float) -> float:
    """For how many seconds an answer is kept, by the seconds that its queries took."""
    return min(KEPT_AT_MOST, max(KEPT, KEPT_SHARE * took))


def read_database_figures(topics: Sequence[str], until_ms: int) -> DatabaseFigures:
    """The figures of these topics; the outbox by minutes up to that instant. Raises
    django.db.Error."""
    connection = connections[get_settings().database]
    archive = connection.ops.quote_name(ArchivedMessage._meta.db_table)
    outbox_table = connection.ops.quote_name(OutboxMessage._meta.db_table)
    late: dict[str, list[float]] = {topic: [] for topic in topics}
    outbox, minutes = Counter[str](), Counter[tuple[str, int]]()
    due: dict[str, int] = {}
    with connection.cursor() as cursor:
        dead = count_open_dead_letters(cursor)
        cursor.execute(
            _OUTBOX.format(outbox=outbox_table, minute=MINUTE_MS, cap=OUTBOX_CAP),
            [until_ms, str(OutboxStatus.WAITING)],
        )
        for topic, minute, count, first_ms in cursor.fetchall():
            outbox[topic] += count
            due[topic] = min(due.get(topic, first_ms), first_ms)
            if minute is not None:
                minutes[topic, int(minute)] += count
        since = connection.ops.adapt_datetimefield_value(timezone.now() - RUNS_SINCE)
        part = _LATENESS.format(archive=archive, runs=RUNS)
        for chunk in chunked(topics, TOPICS_AT_ONCE):
            cursor.execute(
                " UNION ALL ".join([part] * len(chunk)),
                [value for topic in chunk for value in (topic, since)],
            )
            for topic, lateness_ms in cursor.fetchall():
                late[topic].append(lateness_ms)
    return DatabaseFigures(
        dead_letters=dead,
        outbox=outbox,
        outbox_minutes=minutes,
        outbox_due_ms=due,
        lateness_ms=late,
        forecast=newest_forecast(),
        unarchivable=UnarchivableEntry.objects.exists(),
        marks=read_marks(),
    )


def count_open_dead_letters(cursor: CursorWrapper) -> Counter[str]:
    """By topic, the open ones of the newest DEAD_CAP of all topics. Raises django.db.Error."""
    archive = cursor.db.ops.quote_name(ArchivedMessage._meta.db_table)
    cursor.execute(_DEAD.format(archive=archive, cap=DEAD_CAP))
    return Counter(dict(cursor.fetchall()))


def problem_of(error: Error) -> str:
    """What is wrong with the database, and what to do. It names no address and no user: everybody
    who may see the pages reads it."""
    # SQLite reports a missing table or column as other databases report a server that is gone.
    is_lacking = isinstance(error, OperationalError) and "no such " in str(error)
    if is_lacking or isinstance(error, ProgrammingError):
        return (
            f"The database has no such table or column: {type(error).__name__}. "
            "Run manage.py migrate."
        )
    return f"The database does not answer: {type(error).__name__}."
