"""Compares the figures of past hours with limits: a check for cron and for data pipelines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from ...core.job_report import Code, Report, Tell
from ...core.times import in_words, stored, utc
from ...models import TopicHour
from ...stats.hourly import TopicTotals
from ..job_errors import Refused
from ..params import CheckOptions, Params

#: Looked at without a period.
SINCE = timedelta(hours=24)
#: Limits of times, and the figures that they are about, in milliseconds.
TIMES = {"late_p50": "late_p50_ms", "late_p99": "late_p99_ms", "run_p99": "run_p99_ms"}
SHARES = ("dead", "expired", "retried")


def run(spark: Any, params: Params, tell: Tell) -> Report:
    """Compare. The code is DIFFERENT when a limit is broken. Raises Refused when there are no
    figures: what was not measured is not in order."""
    options = params.options(CheckOptions)
    since, until = params.period()
    until = until or datetime.now(tz=timezone.utc)
    since = since or until - SINCE
    rows = TopicHour.objects.filter(hour__gte=stored(since), hour__lt=stored(until))
    if params.topic:
        rows = rows.filter(topic=params.topic)
    totals: dict[str, TopicTotals] = defaultdict(TopicTotals)
    hours = set()
    for row in rows.iterator():
        totals[row.topic].add(row)
        hours.add(row.hour)
    if not totals:
        raise Refused(
            f"There are no figures of {params.topic or 'any topic'} from {since:%Y-%m-%d %H:%M} to "
            f"{until:%Y-%m-%d %H:%M} UTC: run `delayq pipeline stats`, or let run_delayq count "
            "them."
        )
    table, problems = [], []
    for topic, figures in sorted(totals.items()):
        shares = {f"{name}_share": getattr(figures, name) / figures.messages for name in SHARES}
        line = {**figures.line(), **shares}
        broken = list(_broken(line, options))
        table.append({"topic": topic, **line, "broken": broken})
        problems += [f"{topic}: {words}" for words in broken]
    return Report(
        job="check",
        code=Code.DIFFERENT if problems else Code.DONE,
        figures={
            "topics": len(table),
            "hours": len(hours),
            "since": since.isoformat(),
            "until": until.isoformat(),
            "newest_hour": utc(max(hours)).isoformat(),
            "broken": len(problems),
        },
        rows=table,
        problems=problems,
    )


def _broken(line: Mapping[str, Any], options: CheckOptions) -> Iterator[str]:
    for name, figure in TIMES.items():
        limit, measured = getattr(options, name), line[figure]
        if limit is not None and measured is not None and measured > limit * 1000:
            yield (
                f"{name.replace('_', ' ')} is {in_words(measured / 1000)}, the limit is "
                f"{in_words(limit)}"
            )
    for name in SHARES:
        limit, share = getattr(options, name), line[f"{name}_share"]
        if limit is not None and share > limit:
            yield f"{share:.2%} are {name}, the limit is {limit:.2%}"
    if options.messages is not None and line["messages"] < options.messages:
        yield f"{line['messages']:,} messages have ended, {options.messages:,} are expected"
