"""Check the health of the queue, for cron, Nagios and the like: one line and an exit code.

Every topic is compared with limits for its lag, backlog and open dead letters. The rest is what the
pages show under "Attention": a topic where messages wait and no worker serves it, workers whose
threads are all busy, a worker that is gone, a hundred dead letters in the last hour, an archiver or
a relay that is behind, messages that the archive refused. A paused topic is a warning,
and its lag does not count. What breaks a rule of DELAYQ["ALERTS"] is critical, too.

  python manage.py delayq check
  python manage.py delayq check --topic orders --warn-lag 30s --critical-lag 5m --json

Exit codes: 0 fine, 1 warning, 2 critical (also: Redis is away), 3 unknown (the database is away).
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from enum import IntEnum
from typing import Any, NamedTuple

from django.db import Error
from django.utils import translation

from ...core.conf import get_settings
from ...core.exceptions import DelayQError, StoreError
from ...core.present import counted, on_one_line
from ...outbox.existing import check_existing
from ...stats.attention.concerns import LIMITS, Concern, Limits, Urgency, concerns
from ...stats.attention.situation import read_situation
from ...stats.figures import TopicFigures
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
        situation = read_situation(get_store())
        problems = []
        for problem, level in (
            (situation.problem, Level.CRITICAL),
            (situation.database_problem, Level.UNKNOWN),
        ):
            if problem:
                problems.append(HealthProblem(level, "", problem))
        with translation.override(None):  # programs read it
            found = concerns(situation, _limits(options), get_settings().alerts)
            problems += _problems(found, options["topic"])
        rows = [row for row in situation.topics if options["topic"] in ("", row.topic)]
        dead = situation.database.dead_letters
        # Critical before unknown before a warning: the first is certain.
        order = [Level.OK, Level.WARNING, Level.UNKNOWN, Level.CRITICAL]
        problems.sort(key=lambda problem: (-order.index(problem.level), problem.topic))
        worst = problems[0].level if problems else Level.OK
        words = [f"{problem.topic or 'all'}: {problem.words}" for problem in problems]
        summary = (
            "; ".join(words)
            or f"{counted(len(rows), 'topic')} {'is' if len(rows) == 1 else 'are'} fine"
        )
        figures = " ".join(_figures(row, dead[row.topic], options) for row in rows)
        data = {
            "at": situation.at,
            "topics": [
                {
                    "topic": row.topic,
                    "lag": row.lag,
                    "backlog": row.ready,
                    "dead_letters": dead[row.topic],
                    "workers": row.workers,
                    "paused": row.paused,
                }
                for row in rows
            ],
        }
        text = summary + (f" | {figures}" if figures else "")
        return _answer(worst, problems, text, data=data)


def _answer(
    level: Level, problems: Sequence[HealthProblem], text: str, *, data: dict[str, Any]
) -> Answer:
    shown = [
        {"level": problem.level.name.lower(), "topic": problem.topic, "problem": problem.words}
        for problem in problems
    ]
    return Answer(
        text=f"DELAYQ {level.name} - {text}",
        data={"level": level.name.lower(), "problems": shown, **data},
        code=level,
    )


def _limits(options: dict[str, Any]) -> Limits:
    """Those of the pages, with what this command was told about lag, backlog and dead letters."""
    chosen: dict[str, list[tuple[Urgency, float]]] = {}
    for kind, name in (("lag", "lag"), ("backlog", "backlog"), ("dead_letters", "dead")):
        for word, level in (("critical", Urgency.CRITICAL), ("warn", Urgency.WARNING)):
            limit = options[f"{word}_{name}"]
            if limit is not None:
                seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
                chosen.setdefault(kind, []).append((level, seconds))
    # A few dead letters of the last hour are among the open ones, which have a limit here.
    chosen["dead"] = [step for step in LIMITS["dead"] if step[0] is Urgency.CRITICAL]
    return {**LIMITS, "paused": [(Urgency.WARNING, 1)], **chosen}


def _problems(found: Iterable[Concern], topic: str) -> Iterator[HealthProblem]:
    for concern in found:
        if topic and concern.topics and topic not in concern.topics:
            continue
        if topic and concern.kind in ("unarchivable", "audit", "relay_lag"):
            continue
        words = concern.words + (f" (limit {concern.limit})" if concern.limit else "")
        if concern.rule:
            words += f", by the rule {concern.rule!r} of ALERTS"
        yield HealthProblem(Level(concern.urgency), concern.measured.topic, words)


def _figures(row: TopicFigures, dead: int, options: dict[str, Any]) -> str:
    """Performance data, as Nagios reads it: 'name'=value;warning;critical."""
    figures = {"lag": f"{row.lag:.3f}s", "backlog": row.ready, "dead": dead}
    parts = []
    for name, value in figures.items():
        limits = [options[f"{level}_{name}"] for level in ("warn", "critical")]
        ends = [
            f"{limit.total_seconds():g}" if isinstance(limit, timedelta) else str(limit or "")
            for limit in limits
        ]
        parts.append(f"'{row.topic}_{name}'={value};{';'.join(ends)}")
    return " ".join(parts)
