"""Show backlog, lag and lateness of each topic, now or in the past.

Now: what Redis and the outbox hold, and how late messages started. With --history: what finished
in each hour or day, as `run_delayq` has counted it. Times in JSON are instants in ISO 8601 and
milliseconds.

  python manage.py delayq stats
  python manage.py delayq stats --history 7d --topic orders
  python manage.py delayq stats --json
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ...core.times import in_words
from ...stats.history import PERIODS, PeriodFigures, history
from ...stats.overview import TopicOverview, overview
from ...store import get_store
from ..cli import Answer, Verb

_NOW = (
    "topic",
    "ready",
    "lag",
    "next due",
    "delayed",
    "leased",
    "outbox",
    "dead",
    "late p50",
    "p99",
    "workers",
)
_PAST = (
    "UTC",
    "finished",
    "acked",
    "dead",
    "cancelled",
    "expired",
    "retried",
    "late p50",
    "p99",
    "ran p50",
    "p99",
)


class Command(Verb):
    """Shows figures of the present, or of the past."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to show, and how."""
        parser.add_argument("--topic", default="", help="only this topic")
        parser.add_argument(
            "--history",
            choices=list(PERIODS),
            help="what finished in each hour (24h) or day (the others), until now",
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """The figures as a table or as JSON."""
        topic = options["topic"]
        if options["history"]:
            found = history(options["history"], topic)
            data = {
                "spans": [{"at": span.at, **asdict(span.figures)} for span in found.steps],
                "total": found.total,
                "tasks": found.tasks,
                "more_tasks": found.more_tasks,
            }
            day = "%Y-%m-%d" if found.step.days else "%Y-%m-%d %H:%M"
            rows: list[tuple[str, ...]] = [
                (f"{span.at:{day}}", *_figures(span.figures))
                for span in found.steps
                if span.figures.messages
            ]
            rows = [_PAST, *rows, ("all", *_figures(found.total))]
            return Answer(data=data, rows=rows, right=_right(_PAST))
        get_store().clock_ms()  # without Redis there is no present
        now = overview()
        if now.problem:
            self.stderr.write(now.problem)
        topics = [row for row in now.topics if not topic or row.topic == topic]
        return Answer(
            data={"at": now.at, "topics": topics},
            rows=[_NOW, *(_present(row, now.at) for row in topics)],
            right=_right(_NOW),
        )


def _right(head: Sequence[str]) -> Sequence[bool]:
    return [False] + [True] * (len(head) - 1)


def _present(topic: TopicOverview, now: datetime) -> tuple[str, ...]:
    left = None if topic.next_due_at is None else (topic.next_due_at - now).total_seconds()
    counts = (topic.delayed, topic.leased, topic.outbox, topic.dead_letters)
    return (
        f"{topic.topic} (paused)" if topic.paused else topic.topic,
        f"{topic.backlog:,}",
        in_words(topic.lag),
        "-" if left is None else in_words(left) if left > 0 else "now",
        *(f"{count:,}" for count in counts),
        *map(_time, (topic.late_p50_ms, topic.late_p99_ms)),
        str(topic.workers),
    )


def _figures(figures: PeriodFigures) -> Iterable[str]:
    counts = (figures.messages, *figures.states.values(), figures.retried)
    times = (figures.late_p50_ms, figures.late_p99_ms, figures.run_p50_ms, figures.run_p99_ms)
    return *(f"{count:,}" for count in counts), *map(_time, times)


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else in_words(milliseconds / 1000)
