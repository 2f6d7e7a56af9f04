"""Check the health of the queue, for cron, Nagios and the like: one line and an exit code.

Every topic is compared with limits for its lag, backlog and dead letters. A topic where messages
wait and no worker serves it is critical. A paused topic is a warning, and its lag does not count.
What breaks a rule of DELAYQ["ALERTS"] is critical, too.

  python manage.py delayq check
  python manage.py delayq check --topic orders --warn-lag 30s --critical-lag 5m --json

Exit codes: 0 fine, 1 warning, 2 critical (also: Redis is away), 3 unknown (the database is away).
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from django.db import Error

from ...core.conf import get_settings
from ...core.exceptions import DelayQError, StoreError
from ...core.present import counted, on_one_line
from ...core.times import in_words
from ...outbox.existing import check_existing
from ...stats.alerts.conditions import breaches, read_figures
from ...stats.overview import TopicOverview, overview
from ...store import get_store
from ..cli import DURATIONS, Answer, Verb, parse_duration, whole


class Level(IntEnum):
    """How bad it is, and the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class HealthProblem(NamedTuple):
    """What is wrong."""

    level: Level
    topic: str
    words: str
    kind: str = ""
    """Of the rules of ALERTS that are about the same."""


class Command(Verb):
    """Compares the figures with limits."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which topic, and the limits."""
        parser.add_argument("--topic", default="", help="only this topic")
        for level, lag, dead in (("warn", "1m", 1), ("critical", "10m", None)):
            parser.add_argument(
                f"--{level}-lag",
                type=parse_duration,
                default=parse_duration(lag),
                metavar="DURATION",
                help=f"lag from which it is {level}: {DURATIONS} (default: {lag})",
            )
            parser.add_argument(
                f"--{level}-backlog",
                type=whole(),
                metavar="COUNT",
                help=f"due messages from which it is {level} (default: no limit)",
            )
            parser.add_argument(
                f"--{level}-dead",
                type=whole(),
                default=dead,
                metavar="COUNT",
                help=f"open dead letters from which it is {level} (default: {dead or 'no limit'})",
            )

    def run(self, options: dict[str, Any]) -> Answer:
        """The worst level, and all problems. Who reads the answer reads it also when there are no
        figures."""
        try:
            return self._compared(options)
        except (DelayQError, Error) as error:
            # Without Redis nothing is well.
            level = Level.CRITICAL if isinstance(error, StoreError) else Level.UNKNOWN
            words = on_one_line(str(error))
            problems = [HealthProblem(level, "", words)]
            return _answer(level, problems, words, data={"at": None, "topics": []})

    def _compared(self, options: dict[str, Any]) -> Answer:
        get_store().clock_ms()  # raises while Redis is away
        if options["topic"]:
            check_existing(options["topic"])
        now = overview()
        problems = []
        if now.problem:
            level = Level.CRITICAL if now.stale else Level.UNKNOWN
            problems.append(HealthProblem(level, "", now.problem))
        if now.unarchivable and not options["topic"]:
            refused = "the archive refused messages: delayq unarchivable list"
            problems.append(HealthProblem(Level.WARNING, "", refused))
        topics = [row for row in now.topics if options["topic"] in ("", row.topic)]
        for row in topics:
            problems += _problems(row, options)
        problems = _with_alerts(problems, options["topic"])
        # Critical before unknown before a warning: the first is certain.
        order = [Level.OK, Level.WARNING, Level.UNKNOWN, Level.CRITICAL]
        problems.sort(key=lambda problem: (-order.index(problem.level), problem.topic))
        worst = problems[0].level if problems else Level.OK
        words = [f"{problem.topic or 'all'}: {problem.words}" for problem in problems]
        summary = (
            "; ".join(words)
            or f"{counted(len(topics), 'topic')} {'is' if len(topics) == 1 else 'are'} fine"
        )
        figures = " ".join(_figures(row, options) for row in topics)
        data = {
            "at": now.at,
            "topics": [
                {
                    "topic": row.topic,
                    "lag": row.lag,
                    "backlog": row.backlog,
                    "dead_letters": row.dead_letters,
                    "workers": row.workers,
                    "paused": row.paused is not None,
                }
                for row in topics
            ],
        }
        text = summary + (f" | {figures}" if figures else "")
        return _answer(worst, problems, text, data=data)


def _answer(
    level: Level, problems: Sequence[HealthProblem], text: str, *, data: dict[str, Any]
) -> Answer:
    shown = [
        {"level": one.level.name.lower(), "topic": one.topic, "problem": one.words}
        for one in problems
    ]
    return Answer(
        text=f"DELAYQ {level.name} - {text}",
        data={"level": level.name.lower(), "problems": shown, **data},
        code=level,
    )


def _with_alerts(problems: list[HealthProblem], topic: str) -> list[HealthProblem]:
    """What breaks the rules of ALERTS takes the place of a problem of the same kind. While the
    database is away only that is known, which others report."""
    if not (rules := get_settings().alerts):
        return problems
    found: dict[tuple[str, str], HealthProblem] = {}
    with suppress(Error):
        for breach in breaches(rules, read_figures(get_store(), rules)):
            if not topic or breach.topic in ("", topic):
                words = f"{breach.words}, by the rule {breach.rule.name!r} of ALERTS"
                place = (breach.topic, breach.rule.kind)
                found[place] = HealthProblem(Level.CRITICAL, breach.topic, words, breach.rule.kind)
    others = [problem for problem in problems if (problem.topic, problem.kind) not in found]
    return [*others, *found.values()]


def _problems(row: TopicOverview, options: dict[str, Any]) -> Iterator[HealthProblem]:
    if row.unserved:
        words = "messages wait and no worker serves the topic"
        yield HealthProblem(Level.CRITICAL, row.topic, words, "unserved")
    if row.paused:
        yield HealthProblem(Level.WARNING, row.topic, "the topic is paused")
    lag = timedelta() if row.paused else timedelta(seconds=row.lag)
    figures: dict[str, tuple[Any, str]] = {
        "lag": (lag, f"lag {_plain(lag)}"),
        "backlog": (row.backlog, counted(row.backlog, "due message")),
        "dead": (row.dead_letters, counted(row.dead_letters, "open dead letter")),
    }
    for name, (value, words) in figures.items():
        for level in (Level.CRITICAL, Level.WARNING):
            limit = options[f"{'warn' if level is Level.WARNING else 'critical'}_{name}"]
            if limit is not None and value >= limit:
                kind = name if name in ("lag", "backlog") else ""
                yield HealthProblem(level, row.topic, f"{words} (limit {_plain(limit)})", kind)
                break


def _plain(value: Any) -> str:
    return in_words(value.total_seconds()) if isinstance(value, timedelta) else f"{value:,}"


def _figures(row: TopicOverview, options: dict[str, Any]) -> str:
    """Performance data, as Nagios reads it: 'name'=value;warning;critical."""
    figures = {"lag": f"{row.lag:.3f}s", "backlog": row.backlog, "dead": row.dead_letters}
    parts = []
    for name, value in figures.items():
        limits = [options[f"{level}_{name}"] for level in ("warn", "critical")]
        ends = [
            f"{limit.total_seconds():g}" if isinstance(limit, timedelta) else str(limit or "")
            for limit in limits
        ]
        parts.append(f"'{row.topic}_{name}'={value};{';'.join(ends)}")
    return " ".join(parts)
