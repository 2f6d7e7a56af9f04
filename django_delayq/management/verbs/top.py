"""Watch the queue on a terminal, for ssh: what needs attention, all topics, and what runs.

The picture is drawn anew every few seconds until Ctrl-C. It needs rich (the extra `cli`). --once
prints one picture and ends; it is also what --json gives.

  python manage.py delayq top
  python manage.py delayq top --every 5s
  python manage.py delayq top --once
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import translation

from ...core.exceptions import ConfigurationError
from ...core.present import counted, distance, next_due, on_one_line, table
from ...core.times import in_words, local
from ...stats.attention.concerns import Concern, Urgency, attention
from ...stats.held_messages import RunningPage, read_running
from ...stats.overview import Overview, overview
from ...store import get_store
from ..cli import DURATIONS, Answer, Verb, parse_duration

if TYPE_CHECKING:
    from ..terminal import ScreenPart

#: Lines of each part: a terminal has few.
MOST_CONCERNS, MOST_TOPICS, MOST_RUNNING = 8, 15, 15

_TOPICS = (
    "topic", "backlog", "lag", "next due", "delayed", "running", "dead", "per second", "workers",
)  # fmt: skip
#: Columns that a narrow terminal does without, the first ones first.
_TOPICS_WIDE = ("per second", "delayed", "workers", "running", "next due")
_RUNNING = ("running for", "task", "topic", "key", "attempt", "lease ends", "worker", "thread")
_RUNNING_WIDE = ("thread", "attempt", "lease ends", "worker", "topic")


class Picture(NamedTuple):
    """What one look has found."""

    now: Overview
    concerns: Sequence[Concern]
    running: RunningPage

    def topics(self) -> list[tuple[str, ...]]:
        """The table of topics: those that are furthest behind first, paused ones behind them."""
        rows = sorted(
            self.now.topics,
            key=lambda row: (row.paused is not None, -row.lag, -row.backlog, -row.leased),
        )
        return [
            _TOPICS,
            *(
                (
                    f"{row.topic} (paused)" if row.paused else row.topic,
                    f"{row.backlog:,}",
                    in_words(row.lag),
                    next_due(row.next_due_at, self.now.at),
                    f"{row.delayed + row.outbox:,}",
                    f"{row.leased:,}",
                    f"{row.dead_letters:,}",
                    "-" if row.per_second is None else f"{row.per_second:,.1f}",
                    str(row.workers),
                )
                for row in rows[:MOST_TOPICS]
            ),
        ]

    def messages(self) -> list[tuple[str, ...]]:
        """The table of what runs, the longest first."""
        at = self.running.at
        return [
            _RUNNING,
            *(
                (
                    "-" if (seconds := row.seconds(at)) is None else in_words(seconds),
                    row.message.task.rpartition(".")[2],
                    row.message.topic,
                    row.message.key or "-",
                    str(row.message.attempt),
                    distance(row.lease_until, at),
                    row.worker.process if row.worker else "HTTP" if row.over_http else "-",
                    row.thread or "-",
                )
                for row in self.running.rows
            ),
        ]

    def lines(self) -> list[tuple[str, str]]:
        """What needs attention: how bad it is, and the line."""
        found = []
        for concern in self.concerns[:MOST_CONCERNS]:
            where = ", ".join(concern.topics[:3]) if concern.measured.topic else ""
            more = f" and {len(concern.topics) - 3} more" if where and concern.topics[3:] else ""
            words = f"{where}{more}: {concern.words}" if where else concern.words
            found.append((concern.urgency.name.lower(), on_one_line(words)))
        hidden = len(self.concerns) - MOST_CONCERNS
        if hidden > 0:
            found.append(("warning", f"and {hidden} more"))
        return found

    def head(self) -> str:
        """The first line."""
        living = sum(worker.alive for worker in self.now.workers)
        return (
            f"delayq  {local(self.now.at):%H:%M:%S}  {counted(living, 'worker')}, "
            f"{sum(row.backlog for row in self.now.topics):,} in the backlog, "
            f"{self.running.count:,} running"
        )


class Command(Verb):
    """Draws the overview, what needs attention and what runs."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How often, or once."""
        parser.add_argument(
            "--every",
            type=parse_duration,
            default=timedelta(seconds=2),
            metavar="DURATION",
            help=f"time between two pictures: {DURATIONS} (default: 2s)",
        )
        parser.add_argument("--once", action="store_true", help="print one picture and end")

    def run(self, options: dict[str, Any]) -> Answer:
        """One picture as text or JSON, or pictures until Ctrl-C."""
        if options["once"] or options["json"]:
            seen = take_picture()
            marks = {Urgency.CRITICAL.name.lower(): "!!", Urgency.WARNING.name.lower(): " !"}
            lines = [seen.head(), *(f"{marks[level]} {words}" for level, words in seen.lines())]
            for rows, right in ((seen.topics(), 8), (seen.messages(), 0)):
                is_right = [0 < column <= right for column in range(len(rows[0]))]
                lines += [
                    "",
                    *table([[on_one_line(cell) for cell in row] for row in rows], is_right),
                ]
            return Answer(text="\n".join(lines), data=_document(seen))
        try:
            from ..terminal import draw_again
        except ImportError:
            raise ConfigurationError(
                "delayq top needs rich: pip install 'django-delayq[cli]'. Or use --once."
            ) from None
        pause = max(0.5, options["every"].total_seconds())
        draw_again(_parts, lambda: time.sleep(pause))
        return Answer()


def take_picture() -> Picture:
    """All parts as of now. Raises StoreUnavailable."""
    get_store().clock_ms()  # without Redis there is nothing to see
    with translation.override(None):
        return Picture(overview(), attention(), read_running(limit=MOST_RUNNING))


def _parts() -> list[ScreenPart]:
    from ..terminal import ScreenPart

    seen = take_picture()
    running = seen.messages()
    return [
        ScreenPart(seen.head(), lines=seen.lines()),
        ScreenPart("Topics", seen.topics(), figures=_TOPICS[1:], dispensable=_TOPICS_WIDE),
        ScreenPart(
            "Running" if running[1:] else "Nothing runs.",
            running if running[1:] else (),
            figures=("running for", "attempt", "lease ends"),
            dispensable=_RUNNING_WIDE,
        ),
    ]


def _document(seen: Picture) -> dict[str, Any]:
    def as_dicts(rows: Sequence[Sequence[str]]) -> list[dict[str, str]]:
        return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]

    return {
        "at": seen.now.at,
        "attention": [{"level": level, "words": words} for level, words in seen.lines()],
        "topics": as_dicts(seen.topics()),
        "running": as_dicts(seen.messages()),
    }
