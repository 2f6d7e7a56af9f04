"""The first page: what needs attention, what waits, what is due next, how late recent runs were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ...core.present import amount, next_due, seconds
from ...operators.topic_permission import permitted_topics
from ...stats import overview as stats
from ...stats import overview_sql
from ...stats.attention.concerns import Concern
from ...stats.history import FORECAST_DAYS
from ...stats.overview import Overview, TopicOverview
from ...store.queries import COUNTERS
from .. import timed_charts
from ..attention_links import MOST_LINES, found_attention, shown_attention
from ..charts import sparkline
from ..site import register_page, show, url

#: Topics on a page.
TOPICS_ON_PAGE = 50
#: A lag from here on is marked, in seconds: as a warning, as bad.
LAG_WARN, LAG_BAD = 60, 600


class Cell(NamedTuple):
    """One figure of the table."""

    text: str
    mark: str = ""
    """zero, warn or bad."""
    href: str = ""
    at: str = ""
    """The instant whose distance the text is."""


@dataclass(frozen=True)
class Column:
    """A column, and by what its topics are sorted; the worst first."""

    name: str
    label: str | Promise
    worth: Callable[[TopicOverview], Any]
    hint: str | Promise = ""


def _due_ms(topic: TopicOverview) -> float:
    when = topic.first_due_at
    return float("-inf") if when is None else -when.timestamp()


COLUMNS = (
    Column("backlog", gettext_lazy("Backlog"), lambda row: row.backlog),
    Column("lag", gettext_lazy("Lag"), lambda row: row.lag),
    Column("next", gettext_lazy("Next due"), _due_ms),
    Column("dead", gettext_lazy("Dead letters"), lambda row: row.dead_letters),
    Column("delayed", gettext_lazy("Delayed"), lambda row: row.delayed),
    Column("outbox", gettext_lazy("Outbox"), lambda row: row.outbox),
    Column("leased", gettext_lazy("Running"), lambda row: row.leased),
    Column("rate", gettext_lazy("Finished/s"), lambda row: row.per_second or 0),
    Column("late", gettext_lazy("Lateness p50, p99"), lambda row: row.late_p99_ms or 0),
    Column("workers", gettext_lazy("Workers"), lambda row: -row.workers),
)
TOTALS = tuple(
    Column(name, label, lambda row, name=name: row.counters.get(name, 0))  # type: ignore[misc]
    for name, label in zip(
        COUNTERS,
        (
            gettext_lazy("Enqueued"),
            gettext_lazy("Acked"),
            gettext_lazy("Retried"),
            gettext_lazy("Dead"),
            gettext_lazy("Cancelled"),
            gettext_lazy("Expired"),
            gettext_lazy("Reclaimed"),
        ),
        strict=True,
    )
)


@register_page("", "changelist")
def changelist_view(request: HttpRequest) -> HttpResponse:
    """All topics."""
    now = overview_for(request)
    return show(
        request,
        "overview.html",
        _("Delay queue"),
        refreshed=True,
        charts=True,
        **_tables(request, now),
        **_pictures(request, now),
    )


def overview_for(request: HttpRequest) -> Overview:
    """Of the topics that the user may see."""
    topics = permitted_topics(request.user)
    return stats.overview() if topics is None else stats.overview_of(topics)


def _tables(request: HttpRequest, now: Overview) -> dict[str, Any]:
    # Without Redis the banner says what is wrong, and nothing else is known.
    concerns = [] if now.stale else found_attention(request)
    held = [topic for topic in now.topics if topic.waiting and (topic.paused or topic.unserved)]
    return {
        "overview": now,
        "totals": now.totals,
        "lag_mark": _lag_mark(now.totals.lag),
        "paused": [topic for topic in now.topics if topic.paused][:TOPICS_ON_PAGE],
        "attention": shown_attention(request, concerns),
        "more_attention": max(0, len(concerns) - MOST_LINES),
        "held": held[:TOPICS_ON_PAGE],
        "more_held": max(0, len(held) - TOPICS_ON_PAGE),
        "unused": not now.problem
        and not any(topic.waiting or topic.counters.get("enqueued") for topic in now.topics),
        "summary": _summary(now),
        **_table(request, now, concerns),
    }


def _table(request: HttpRequest, now: Overview, concerns: Sequence[Concern]) -> dict[str, Any]:
    """The topics of the page that is asked for."""
    asked = request.GET
    is_totals = asked.get("columns") == "totals"
    columns = [
        column
        for column in (TOTALS if is_totals else COLUMNS)
        if column.name != "outbox" or now.totals.outbox
    ]
    wanted = asked.get("topic", "").strip().lower()
    topics = [topic for topic in now.topics if wanted in topic.topic.lower()]
    sort = asked.get("sort", "")
    by_name = {column.name: column for column in columns}
    chosen = by_name.get(sort.removeprefix("-"))
    if chosen is not None:
        # Names stay in their order among equals; "-" turns the order around.
        topics.sort(key=chosen.worth, reverse=not sort.startswith("-"))
    elif sort.removeprefix("-") == "topic":
        topics.sort(key=lambda topic: topic.topic, reverse=sort.startswith("-"))
    else:
        urgent = _urgencies(concerns)
        topics.sort(key=lambda topic: _badness(topic, urgent), reverse=True)
    page = int(asked["page"]) if asked.get("page", "").isdecimal() else 1
    last = max(1, -(-len(topics) // TOPICS_ON_PAGE))
    page = min(max(1, page), last)
    begin = (page - 1) * TOPICS_ON_PAGE
    shown = topics[begin : begin + TOPICS_ON_PAGE]

    def query(**changes: str) -> str:
        changed = asked.copy()
        for name, value in {"page": "", **changes}.items():
            changed.pop(name, None)
            if value:
                changed[name] = value
        return f"?{changed.urlencode()}"

    dead = url(request, "dead_letters")
    heads = [
        {
            "label": label,
            # A second click turns the order around.
            "query": query(sort=f"-{name}" if sort == name else name),
            "sorted": "" if sort.removeprefix("-") != name else _order(name, sort),
        }
        for name, label in (("topic", _("Topic")), *((one.name, one.label) for one in columns))
    ]
    return {
        "heads": heads,
        "rows": [
            (
                topic,
                [
                    Cell(amount(topic.counters.get(name, 0)), _zero(topic.counters.get(name)))
                    for name in COUNTERS
                ]
                if is_totals
                else _cells(topic, now, dead),
            )
            for topic in shown
        ],
        "is_totals": is_totals,
        "columns_query": query(columns="" if is_totals else "totals", sort=""),
        "wanted": asked.get("topic", ""),
        "sort": sort,
        "found": len(topics),
        "first": begin + 1,
        "last": begin + len(shown),
        "worst_query": query(sort="") if sort else "",
        "links": {
            **({"previous": query(page=str(page - 1))} if page > 1 else {}),
            **({"next": query(page=str(page + 1))} if page < last else {}),
        },
    }


def _order(name: str, sort: str) -> str:
    descending = sort.startswith("-") if name == "topic" else not sort.startswith("-")
    return "descending" if descending else "ascending"


def _urgencies(concerns: Sequence[Concern]) -> Mapping[str, int]:
    urgent: dict[str, int] = {}
    for concern in concerns:
        if concern.measured.topic:  # not what a worker or the archiver has with all its topics
            for topic in concern.topics:
                urgent[topic] = max(urgent.get(topic, 0), concern.urgency)
    return urgent


def _badness(topic: TopicOverview, urgent: Mapping[str, int]) -> tuple[float, ...]:
    is_late = topic.lag if topic.lag >= LAG_WARN else 0.0
    return (
        urgent.get(topic.topic, 0),
        is_late,
        topic.dead_letters,
        topic.backlog,
        topic.leased,
        topic.per_second or 0.0,
        topic.waiting,
    )


def _cells(topic: TopicOverview, now: Overview, dead: str) -> list[Cell]:
    plus, more = ("+" if is_more else "" for is_more in (now.dead_capped, now.outbox_capped))
    letters = amount(topic.dead_letters) + plus * bool(topic.dead_letters)
    late = "–"
    if topic.late_p50_ms is not None and topic.late_p99_ms is not None:
        late = f"{seconds(topic.late_p50_ms / 1000)}, {seconds(topic.late_p99_ms / 1000)}"
    due_at = topic.first_due_at
    outbox = [Cell(amount(topic.outbox) + more * bool(topic.outbox), _zero(topic.outbox))]
    workers = amount(topic.workers)
    if topic.quiet_workers:
        workers += " " + _("(%(quiet)s quiet)") % {"quiet": amount(topic.quiet_workers)}
    return [
        Cell(amount(topic.backlog), _zero(topic.backlog)),
        Cell(seconds(topic.lag) if topic.lag else "0", _lag_mark(topic.lag) or _zero(topic.lag)),
        Cell(
            next_due(due_at, now.at),
            "" if due_at else "zero",
            at=due_at.isoformat() if due_at else "",
        ),
        Cell(letters, "warn", f"{dead}?topic={topic.topic}")
        if topic.dead_letters
        else Cell("0" if now.has_database else "–", "zero"),
        Cell(amount(topic.delayed), _zero(topic.delayed)),
        *(outbox if now.totals.outbox else ()),
        Cell(amount(topic.leased), _zero(topic.leased)),
        Cell(amount(topic.per_second), _zero(topic.per_second)),
        Cell(late, "zero" if late == "–" else ""),
        Cell(workers, "bad" if topic.unserved else _zero(topic.workers)),
    ]


def _zero(value: float | None) -> str:
    return "" if value else "zero"


def _lag_mark(lag: float) -> str:
    return "bad" if lag >= LAG_BAD else "warn" if lag >= LAG_WARN else ""


def _pictures(request: HttpRequest, now: Overview) -> dict[str, Any]:
    samples, forecast = now.samples[-timed_charts.SPARK_MINUTES :], None
    waiting = f"{url(request, 'waiting')}?"
    lines = {
        "rate": ([sample.finished_per_second for sample in samples], _("Finished per second")),
        "lag": ([sample.lag for sample in samples], _("Lag")),
        "waiting": ([float(sample.waiting) for sample in samples], _("Waiting messages")),
    }
    if now.forecast is not None:  # projects without the pipeline have none
        kept = now.forecast
        forecast = {
            "kept": kept,
            "is_old": kept.is_old(now.at),
            "later": kept.later(),
            "picture": timed_charts.days_chart(kept, waiting),
            "days": FORECAST_DAYS,
        }
    return {
        "minutes": timed_charts.minutes_chart(now, waiting, now.stacked),
        "hours": timed_charts.hours_chart(now, waiting, now.stacked),
        "lateness": timed_charts.lateness_chart(now),
        "forecast": forecast,
        "runs_of_each": overview_sql.RUNS,
        "topics_of_lateness": overview_sql.TOPICS_AT_ONCE,
        "sparks": {
            name: sparkline(values, title=_("%(what)s over the last three hours") % {"what": what})
            for name, (values, what) in lines.items()
        },
        **timed_charts.past(request, now),
    }


def _summary(now: Overview) -> str:
    """For those who listen to the page: it is read out once a minute."""
    if now.problem:
        return _("Redis or the database could not be read. The figures are old.")
    totals = now.totals
    dead = ngettext(
        "%(number)s open dead letter", "%(number)s open dead letters", totals.dead_letters
    )
    workers = ngettext("%(number)s worker", "%(number)s workers", totals.workers)
    return _("Backlog %(ready)s, lag %(lag)s, next due %(next)s, %(dead)s, %(workers)s.") % {
        "ready": amount(totals.backlog),
        "lag": seconds(totals.lag),
        "next": next_due(totals.next_due_at, now.at),
        "dead": dead % {"number": amount(totals.dead_letters)},
        "workers": workers % {"number": amount(totals.workers)},
    }
