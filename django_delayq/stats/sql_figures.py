"""What the overview asks the database: a few short queries, each bounded whatever the tables
hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from django.db import Error, OperationalError, ProgrammingError, connections
from django.utils import timezone

from ..core.conf import get_settings
from ..models import ArchivedMessage, OutboxMessage, OutboxStatus, UnarchivableEntry
from .forecasts import KeptForecast, newest_forecast

#: Open dead letters that are counted, the newest of all topics.
DEAD_CAP = 50_000
#: Waiting rows of the outbox that are counted, the nearest of all topics.
OUTBOX_CAP = 100_000
#: Runs of each topic whose lateness is looked at.
RUNS = 200
#: Older runs say nothing of now. They are left out after the newest were found: to look for newer
#: ones would take a walk along all that there are.
RUNS_SINCE = timedelta(days=1)

_MINUTE_MS = 60_000

_DEAD = """
SELECT topic, COUNT(*) FROM (
    SELECT topic FROM {archive}
    WHERE state = 'dead' AND replayed_at IS NULL AND discarded_at IS NULL
    ORDER BY finished_at DESC LIMIT {cap}
) AS newest GROUP BY topic"""

_OUTBOX = """
SELECT topic, minute, COUNT(*) FROM (
    SELECT topic,
    CASE WHEN due_at_ms < %s THEN due_at_ms - due_at_ms %% {minute} ELSE NULL END AS minute
    FROM {outbox} WHERE status = %s ORDER BY relay_at_ms LIMIT {cap}
) AS nearest GROUP BY topic, minute"""


_LATENESS = """
SELECT topic, lateness_ms FROM (
    SELECT topic, lateness_ms, finished_at FROM {archive}
    WHERE state = 'acked' AND topic = %s AND lateness_ms IS NOT NULL
    ORDER BY id DESC LIMIT {runs}
) AS newest WHERE finished_at >= %s"""


class SqlFigures(NamedTuple):
    """All of it."""

    dead_letters: Counter[str]
    """Open ones by topic."""
    outbox: Counter[str]
    """Waiting rows by topic."""
    outbox_minutes: Counter[int]
    """The same, as far as they are due within the time that was asked for, by the instant (ms) of
    the minute."""
    lateness_ms: dict[str, Sequence[float]]
    """Of the newest acked runs of each topic that are not older than RUNS_SINCE, sorted."""
    forecast: KeptForecast | None
    """The newest."""
    unarchivable: bool
    """Whether there are any."""


def read(topics: Iterable[str], until_ms: int) -> SqlFigures:
    """The figures of these topics; the outbox by minutes up to that instant. Raises
    django.db.Error."""
    connection = connections[get_settings().database]
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(_DEAD.format(archive=quote(ArchivedMessage._meta.db_table), cap=DEAD_CAP))
        dead = Counter(dict(cursor.fetchall()))
        names = {
            "outbox": quote(OutboxMessage._meta.db_table),
            "minute": _MINUTE_MS,
            "cap": OUTBOX_CAP,
        }
        cursor.execute(_OUTBOX.format(**names), [until_ms, str(OutboxStatus.WAITING)])
        waiting = cursor.fetchall()
        late: dict[str, list[float]] = {topic: [] for topic in topics}
        since = connection.ops.adapt_datetimefield_value(timezone.now() - RUNS_SINCE)
        part = _LATENESS.format(archive=quote(ArchivedMessage._meta.db_table), runs=RUNS)
        for some in _chunks(list(late)):
            cursor.execute(
                " UNION ALL ".join([part] * len(some)),
                [one for topic in some for one in (topic, since)],
            )
            for topic, lateness_ms in cursor.fetchall():
                late[topic].append(lateness_ms)
    outbox, minutes = Counter[str](), Counter[int]()
    for topic, minute, count in waiting:
        outbox[topic] += count
        if minute is not None:
            minutes[int(minute)] += count
    lateness_ms = {topic: sorted(values) for topic, values in late.items()}
    return SqlFigures(
        dead, outbox, minutes, lateness_ms, newest_forecast(), UnarchivableEntry.objects.exists()
    )


def problem_of(error: Error) -> str:
    """What is wrong with the database, and what to do: for people who shall not learn its address
    and users from it."""
    said = f"The database does not answer: {type(error).__name__}."
    # SQLite says of a missing table or column what others say of a server that is gone.
    lacking = isinstance(error, OperationalError) and "no such " in str(error)
    if not (lacking or isinstance(error, ProgrammingError)):
        return said
    return (
        f"The database has no such table or column: {type(error).__name__}. Run manage.py migrate."
    )


def _chunks(topics: list[str], size: int = 100) -> Iterable[list[str]]:
    """One statement for so many: each part is a short walk along an index. SQLite takes 500 of them
    at most."""
    return (topics[at : at + size] for at in range(0, len(topics), size))
