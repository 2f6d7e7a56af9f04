"""The charts of the overview, of a topic and of the statistics: what falls due, how late runs
were, throughput and lag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..core.chunks import chunked
from ..core.present import seconds, visible, word
from ..core.times import from_ms, local
from ..stats.history import KeptForecast
from ..stats.marks import ChartMark
from ..stats.overview import LATENESS_MS, MOST_STACKED, Bucket, Overview, Sample
from .charts import Axis, Chart, Series

#: Minutes of the lines without axes.
SPARK_MINUTES = 180
#: Hours that the chart of the past shows -> how many samples (minutes) are one point of it.
PAST_HOURS: Mapping[int, int] = {3: 1, 24: 5}
#: The table of its numbers has so many rows.
PAST_ROWS = 18


def minutes_chart(now: Overview, waiting: str, stacked: Sequence[str] = ()) -> Chart:
    """Due in the next hour, `stacked` by these topics. `waiting`: the address of the list of
    waiting messages, up to the filter of the due times."""
    title = _("Due in the next hour")
    minute = timedelta(minutes=1)
    return _bars(now.minutes, minute, "delayq-minutes", title, waiting, _of_topics(stacked))


def hours_chart(now: Overview, waiting: str, stacked: Sequence[str] = ()) -> Chart:
    """Due in the next day."""
    title = _("Due in the next 24 hours")
    hour = timedelta(hours=1)
    return _bars(now.hours, hour, "delayq-hours", title, waiting, _of_topics(stacked))


def _of_topics(stacked: Sequence[str]) -> list[tuple[str, str]]:
    return [(topic, urlencode({"topic": topic})) for topic in stacked]


def tasks_chart(buckets: Sequence[Mapping[str, int]], now: Overview, waiting: str) -> Chart:
    """Due in the next hour, by task: one mapping for each minute."""
    most = Counter[str]()
    for bucket in buckets:
        most.update(bucket)
    stacked = sorted(task for task, _count in most.most_common(MOST_STACKED))
    bars = []
    for bucket, minute in zip(buckets, now.minutes, strict=True):
        parts = [bucket.get(task, 0) for task in stacked]
        count = sum(bucket.values())
        bars.append(Bucket(count=count, at=minute.at, parts=[*parts, count - sum(parts)]))
    names = [(visible(task.rpartition(".")[2]), urlencode({"task": task})) for task in stacked]
    title = _("Due in the next hour, by task")
    return _bars(bars, timedelta(minutes=1), "delayq-minutes", title, waiting, names)


def _bars(
    bars: Sequence[Bucket],
    step: timedelta,
    name: str,
    title: str,
    waiting: str,
    stacked: Sequence[tuple[str, str]],
) -> Chart:
    """`stacked`: what the bars tell apart, and the filter of the list that has only that."""
    ranges = [range_words(bucket.at, step) for bucket in bars if bucket.at]
    if ranges:
        ranges[0] = _("%(range)s or overdue") % {"range": ranges[0]}
    series = [
        Series(
            label=one,
            values=[bucket.parts[nth] for bucket in bars],
            colour=str(nth),
            listed=f"{waiting}{narrowed}&",
        )
        for nth, (one, narrowed) in enumerate(stacked)
        if any(bucket.parts[nth] for bucket in bars)
    ]
    others = [bucket.parts[-1] for bucket in bars] if stacked else []
    if any(others):
        series.append(Series(label=_("all others"), values=others, colour=str(MOST_STACKED)))
    if not series:
        series = [Series(label=_("Messages"), values=[bucket.count for bucket in bars])]
    return Chart(
        name=name,
        title=title,
        x_title=_("Due"),
        axes=[Axis(title=_("Messages"))],
        series=series,
        at=[bucket.at.timestamp() for bucket in bars if bucket.at],
        step=step.total_seconds(),
        ranges=ranges,
        listed=waiting,
    )


def range_words(at: datetime, step: timedelta) -> str:
    """`16:00 to 17:00`; of a minute `16:04`; of a day `2026-11-24`."""
    begin = local(at)
    if step >= timedelta(days=1):
        return f"{begin:%Y-%m-%d}"
    if step < timedelta(hours=1):
        return f"{begin:%H:%M}"
    return _("%(begin)s to %(end)s") % {
        "begin": f"{begin:%H:%M}",
        "end": f"{local(at + step):%H:%M}",
    }


def lateness_chart(now: Overview) -> Chart:
    """The newest runs by how late they were."""
    words = [seconds(end / 1000) for end in LATENESS_MS]
    return Chart(
        name="delayq-lateness",
        title=_("Newest runs by lateness"),
        x_title=_("Lateness"),
        axes=[Axis(title=_("Runs"))],
        series=[Series(label=_("Runs"), values=[bucket.count for bucket in now.lateness])],
        labels=[*(f"≤ {one}" for one in words), f"> {words[-1]}"][: len(now.lateness)],
        ranges=[
            *(
                _("%(least)s to %(most)s") % {"least": least, "most": most}
                for least, most in pairwise(["0", *words])
            ),
            _("more than %(least)s") % {"least": words[-1]},
        ][: len(now.lateness)],
    )


def days_chart(kept: KeptForecast, waiting: str) -> Chart:
    """What the pipeline has counted, by day of the page's zone."""
    days = [Bucket(count=count, at=at) for at, count in kept.days()]
    day = timedelta(days=1)
    return _bars(days, day, "delayq-forecast-days", _("Due by day"), waiting, ())


def past(request: HttpRequest, now: Overview) -> dict[str, Any]:
    """Throughput and lag of the last hours, with marks; which hours, the address says."""
    asked = request.GET.get("hours", "")
    hours = int(asked) if asked.isdecimal() and int(asked) in PAST_HOURS else min(PAST_HOURS)
    # From a whole minute on: so nothing changes between two samples.
    begin_ms = (int(now.at.timestamp()) // 60 - hours * 60) * 60_000
    samples = [sample for sample in now.samples if sample.at_ms >= begin_ms]
    marks = [
        (mark.at, mark_words(mark)) for mark in now.marks if mark.at.timestamp() * 1000 >= begin_ms
    ]
    query = request.GET.copy()
    periods = []
    for one in PAST_HOURS:
        query["hours"] = str(one)
        periods.append((one, f"?{query.urlencode()}#delayq-past", one == hours))
    return {
        "past": past_chart(samples, PAST_HOURS[hours], marks, hours) if samples else None,
        "past_marks": list(reversed(marks)),
        "past_periods": periods,
    }


def past_chart(
    samples: Sequence[Sample], together: int, marks: Sequence[tuple[datetime, str]], hours: int
) -> Chart:
    """Lines: one point for so many samples."""
    points = [_point(group) for group in chunked(samples, together)]
    rows = list(chunked(samples, max(1, -(-len(samples) // PAST_ROWS))))
    rate, lag = (
        Axis(title=_("Finished per second"), unit="rate"),
        Axis(title=_("Lag"), unit="duration"),
    )
    return Chart(
        name="delayq-throughput",
        title=_("Throughput and lag, last %(hours)s hours") % {"hours": hours},
        x_title=_("Time"),
        axes=[rate, lag],
        series=[
            Series(
                label=_("Finished"),
                values=[round(point.finished_per_second, 3) for point in points],
            ),
            Series(
                label=_("Lag"),
                values=[round(point.lag, 1) for point in points],
                colour="warn",
                axis=1,
            ),
        ],
        at=[point.at_ms / 1000 for point in points],
        marks=marks,
        rows=[
            (
                f"{local(from_ms(row[0].at_ms)):%H:%M}",
                (rate.words(_point(row).finished_per_second), lag.words(_point(row).lag)),
            )
            for row in reversed(rows)
        ],
    )


def _point(samples: Sequence[Sample]) -> Sample:
    """The mean rate and the greatest lag of some minutes."""
    return Sample(
        at_ms=samples[0].at_ms,
        finished_per_second=sum(one.finished_per_second for one in samples) / len(samples),
        lag=max(one.lag for one in samples),
        waiting=samples[-1].waiting,
    )


def mark_words(mark: ChartMark) -> str:
    """`v2.3`, or `pause orders`."""
    return visible(mark.words or f"{word(mark.action)} {mark.topic}".strip())
