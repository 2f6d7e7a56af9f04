"""Open dead letters in groups: what died, of which error, and how many of it in the last hour, day
and week."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from django.db import connections
from django.db.models import Case, DateTimeField, F, Value, When
from django.db.models.functions import Left
from django.utils import timezone

from ..core.conf import check_name
from ..models.one_statement import Count, Query, read_together
from .selection import Rows, Selection

#: How far back each window goes. The longest is also where counting ends.
WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(hours=24), "week": timedelta(days=7)}
#: Dead letters that are counted, the newest ones: a flood of them must not make the page slow when
#: it is needed.
MOST_ROWS = 100_000
#: Groups that are shown: a task may give each message a reason of its own.
MOST_GROUPS = 50
#: Older ones are counted up to here.
MOST_OLDER = 10_000
#: Characters of an error message that are enough to recognise it.
MESSAGE_LENGTH = 300

#: One pass over the newest rows for all windows.
_GROUPS = """
SELECT task, error,
    SUM(CASE WHEN finished_at >= %s THEN 1 ELSE 0 END) AS in_hour,
    SUM(CASE WHEN finished_at >= %s THEN 1 ELSE 0 END) AS in_day,
    COUNT(*) AS in_week, MAX(finished_at), MIN(finished_at),
    SUM(COUNT(*)) OVER (), MIN(MIN(finished_at)) OVER ()
FROM ({newest}) AS newest GROUP BY task, error
ORDER BY in_hour DESC, in_day DESC, in_week DESC, task, error LIMIT {most}"""

_ERROR = Case(When(error_class="", then=F("reason")), default=F("error_class"))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Open dead letters of one task that died of the same."""

    task: str
    error: str
    """Class of the error. A dead letter without one has its reason here (poison, unknown_task ...
    or what Reject said)."""
    hour: int
    """How many died in the last hour."""
    day: int
    """In the last 24 hours, the last hour included."""
    week: int
    """In the last seven days."""
    newest_at: datetime
    oldest_at: datetime
    """Of the last seven days."""
    message: str = ""
    """The beginning of the newest one's error message, when it was asked for."""
    died_again: bool = False
    """Whether the newest one is a replay: it died before."""


@dataclass(frozen=True, kw_only=True)
class DeadLetters:
    """All groups, of one moment."""

    at: datetime
    topic: str
    """The only topic that it is about; empty for all."""
    task: str = ""
    """The only task."""
    asked_error: str = ""
    """The only error, as in Selection."""
    groups: Sequence[Group]
    """The most frequent of the last hour come first, then those of the last day, then those of the
    last week. At most MOST_GROUPS."""
    more_groups: bool
    """Whether there are others."""
    counted_since: datetime | None
    """Set when there were more than MOST_ROWS: the figures leave out what died before that
    instant."""
    older: int
    """How many died before the last week and are still open: up to MOST_OLDER."""
    beside: Sequence[Any] = ()
    """What was read beside it."""

    @property
    def is_older_partial(self) -> bool:
        """Whether there may be more of them."""
        return self.older >= MOST_OLDER

    def since(self, window: str) -> datetime:
        """Where a window begins: `hour`, `day` or `week`."""
        return self.at - WINDOWS[window]

    def is_partial(self, window: str) -> bool:
        """Whether the window goes further back than was counted."""
        return self.counted_since is not None and self.since(window) < self.counted_since

    def total(self, window: str) -> int:
        """Of the groups that are shown."""
        return sum(getattr(group, window) for group in self.groups)

    def selection(self, group: Group | None = None, window: str = "week") -> Selection:
        """The rows behind one number: of a group, or of all of them."""
        whole = self._all.narrowed(since=self.since(window))
        return whole.narrowed(task=group.task, error=f"={group.error}") if group else whole

    def older_selection(self) -> Selection:
        """The rows that died before the last week."""
        return self._all.narrowed(until=self.since("week"))

    @property
    def _all(self) -> Selection:
        return Selection(open=True, topic=self.topic, task=self.task, error=self.asked_error)


def grouped(
    topic: str = "",
    *,
    task: str = "",
    error: str = "",
    messages: bool = False,
    topics: Iterable[str] | None = None,
    beside: Sequence[Query] = (),
) -> DeadLetters:
    """Open dead letters by task and error: the newest MOST_ROWS of the last seven days, of one
    topic or of all. `task`, `error`: only these, as in Selection. `topics`: only of these.
    `beside`: queries to read with it, as read_together() does.

    `messages`: also what the newest of each group said. Two queries. The index delayq_archive_open
    answers them without reading other rows than the newest of each group. Raises InvalidName.
    """
    if topic:
        check_name(topic, "a topic")
    at = timezone.now()
    seen = None if topics is None else tuple(topics)
    asked = Selection(open=True, topic=topic, task=task, error=error, topics=seen)
    rows = asked.rows().annotate(error=_ERROR)
    found, counted_since = _counted(rows, at)
    groups = found[:MOST_GROUPS]
    # The newest rows are found by their instants, which the index has. Few rows have the same
    # instant.
    newest = rows.filter(finished_at__in={group.newest_at for group in groups})
    newest = newest.annotate(text=Left("error_message", MESSAGE_LENGTH) if messages else Value(""))
    older, rows_of_groups, *others = read_together(
        Count(rows.filter(finished_at__lt=at - WINDOWS["week"]).order_by()[:MOST_OLDER]),
        newest.values_list("task", "error", "finished_at", "text", "replay_of")[: 10 * MOST_GROUPS],
        *beside,
    )
    of_group = {
        tuple(group): (text, replay_of is not None) for *group, text, replay_of in rows_of_groups
    }
    for number, group in enumerate(groups):
        text, died_again = of_group.get((group.task, group.error, group.newest_at), ("", False))
        groups[number] = replace(group, message=text, died_again=died_again)
    return DeadLetters(
        at=at,
        topic=topic,
        task=task,
        asked_error=error,
        groups=groups,
        more_groups=len(found) > MOST_GROUPS,
        counted_since=counted_since,
        older=older,
        beside=others,
    )


def _counted(rows: Rows, at: datetime) -> tuple[list[Group], datetime | None]:
    """One more than MOST_GROUPS groups, and since when they are counted if that is not the whole
    week."""
    week = rows.filter(finished_at__gte=at - WINDOWS["week"]).order_by("-finished_at")
    newest = week.values_list("task", "error", "finished_at")[: MOST_ROWS + 1]
    sql, given = newest.query.get_compiler(rows.db).as_sql()
    connection = connections[rows.db]
    begins = [
        connection.ops.adapt_datetimefield_value(at - WINDOWS[name]) for name in ("hour", "day")
    ]
    instant = Value(None, output_field=DateTimeField())
    converters = [
        *connection.ops.get_db_converters(instant),
        *instant.get_db_converters(connection),
    ]

    def aware(value: Any) -> datetime:
        for convert in converters:
            value = convert(value, instant, connection)
        return cast("datetime", value)

    with connection.cursor() as cursor:
        cursor.execute(_GROUPS.format(newest=sql, most=MOST_GROUPS + 1), [*begins, *given])
        found = cursor.fetchall()
    groups = [
        Group(
            task=task, error=error, hour=int(hour), day=int(day), week=week,
            newest_at=aware(newest_at), oldest_at=aware(oldest_at),
        )
        for task, error, hour, day, week, newest_at, oldest_at, _, _ in found
    ]  # fmt: skip
    is_partial = bool(found) and int(found[0][-2]) > MOST_ROWS
    return groups, aware(found[0][-1]) if is_partial else None
