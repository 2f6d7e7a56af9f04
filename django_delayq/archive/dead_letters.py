"""Open dead letters in groups: what died, of which error, and how many of it in the last hour, day
and week."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Case, Count, F, Max, Min, Q, Value, When
from django.db.models.functions import Left
from django.utils import timezone

from ..core.conf import check_name
from .selection import Selection

#: How far back each window goes. The longest is also where counting ends.
WINDOWS = {"hour": timedelta(hours=1), "day": timedelta(hours=24), "week": timedelta(days=7)}
#: Dead letters that are counted, the newest ones: a flood of them must not make the page slow when
#: it is needed.
MOST_ROWS = 100_000
#: Groups that are shown: a task may give each message a reason of its own.
MOST_GROUPS = 100
#: Older ones are counted up to here.
MOST_OLDER = 10_000
#: Characters of an error message that are enough to recognise it.
MESSAGE_LENGTH = 300

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
        whole = Selection(open=True, topic=self.topic, since=self.since(window))
        return whole.narrowed(task=group.task, error=f"={group.error}") if group else whole

    def older_selection(self) -> Selection:
        """The rows that died before the last week."""
        return Selection(open=True, topic=self.topic, until=self.since("week"))


def grouped(
    topic: str = "", *, messages: bool = False, topics: Iterable[str] | None = None
) -> DeadLetters:
    """Open dead letters by task and error: the newest MOST_ROWS of the last seven days, of one
    topic or of all. `topics`: only of these.

    `messages`: also what the newest of each group said. The index delayq_archive_open answers all
    three queries without reading the rows; only this further query reads them. Raises InvalidName.
    """
    if topic:
        check_name(topic, "a topic")
    at = timezone.now()
    seen = None if topics is None else tuple(topics)
    rows = Selection(open=True, topic=topic, topics=seen).rows()
    week = rows.filter(finished_at__gte=at - WINDOWS["week"])
    counted_since = (
        week.order_by("-finished_at")
        .values_list("finished_at", flat=True)[MOST_ROWS : MOST_ROWS + 1]
        .first()
    )
    if counted_since is not None:
        week = week.filter(finished_at__gte=counted_since)
    # One query for all windows. It counts a column of the index, so that PostgreSQL need not read
    # the rows.
    counts = {
        name: Count("finished_at", filter=Q(finished_at__gte=at - length))
        for name, length in WINDOWS.items()
    }
    named = week.annotate(error=_ERROR).order_by().values("task", "error")
    named = named.annotate(**counts, newest_at=Max("finished_at"), oldest_at=Min("finished_at"))
    named = named.order_by("-hour", "-day", "-week", "task", "error")
    found = [Group(**values) for values in named[: MOST_GROUPS + 1]]
    groups = found[:MOST_GROUPS]
    if groups:
        # The newest rows are found by their instants, which the index has. Few rows have the same
        # instant.
        newest = rows.filter(finished_at__in={group.newest_at for group in groups})
        text = Left("error_message", MESSAGE_LENGTH) if messages else Value("")
        newest = newest.annotate(error=_ERROR, text=text)
        columns = ("task", "error", "finished_at", "text", "replay_of")
        of_group = {
            tuple(group): (text, replay_of is not None)
            for *group, text, replay_of in newest.values_list(*columns)[: 10 * MOST_GROUPS]
        }
        nothing = "", False
        for number, group in enumerate(groups):
            found_of = of_group.get((group.task, group.error, group.newest_at), nothing)
            groups[number] = replace(group, message=found_of[0], died_again=found_of[1])
    return DeadLetters(
        at=at,
        topic=topic,
        groups=groups,
        more_groups=len(found) > MOST_GROUPS,
        counted_since=counted_since,
        older=rows.filter(finished_at__lt=at - WINDOWS["week"])[:MOST_OLDER].count(),
    )
