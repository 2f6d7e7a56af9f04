"""manage.py delayq_stats: how the topics are, or were."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from ...core.exceptions import DelayQError, StoreUnavailable
from ...core.times import in_words
from ...stats.history import PERIODS, History, PeriodFigures, history
from ...stats.overview import TopicOverview, overview
from ...store import get_store
from ...worker.process.runner import ExitCode

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


class Command(BaseCommand):
    """Figures of the present, or with --history of the past. Exit codes: 0 done, 1 error, 2
    options, 3 no Redis."""

    help = (
        "Shows backlog, lag and lateness of each topic now, or what finished in a period with "
        "--history."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to show, and how."""
        parser.add_argument("--topic", default="", help="only this one")
        parser.add_argument(
            "--history", choices=list(PERIODS), help="what finished by hour or day, until now"
        )
        parser.add_argument(
            "--json", action="store_true", help="for programs; instants in ISO 8601, times in ms"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print a table or JSON."""
        try:
            if options["history"]:
                self._past(history(options["history"], options["topic"]), options["json"])
            else:
                self._now(options["topic"], options["json"])
        except StoreUnavailable as error:
            raise CommandError(str(error), returncode=ExitCode.UNREACHABLE) from error
        except (DelayQError, Error) as error:
            raise CommandError(
                f"{type(error).__name__}: {error}", returncode=ExitCode.ERROR
            ) from error

    def _now(self, topic: str, as_json: bool) -> None:
        get_store().clock_ms()  # without Redis there is no present
        now = overview()
        if now.problem:
            self.stderr.write(now.problem)
        topics = [one for one in now.topics if not topic or one.topic == topic]
        if as_json:
            self._print_json({"at": now.at, "topics": [asdict(one) for one in topics]})
        else:
            self._print_table(_NOW, ([*_present(one, now.at)] for one in topics))

    def _past(self, found: History, as_json: bool) -> None:
        if as_json:
            spans = [{"at": span.at, **asdict(span.figures)} for span in found.steps]
            self._print_json(
                {
                    "spans": spans,
                    "total": asdict(found.total),
                    "tasks": [asdict(t) for t in found.tasks],
                }
            )
            return
        shown = "%Y-%m-%d %H:%M" if found.step.days == 0 else "%Y-%m-%d"
        lines = [
            [f"{span.at:{shown}}", *_figures(span.figures)]
            for span in found.steps
            if span.figures.messages
        ]
        self._print_table(_PAST, [*lines, ["all", *_figures(found.total)]])

    def _print_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, default=lambda instant: instant.isoformat(), indent=1))

    def _print_table(self, names: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
        rows = [list(names), *map(list, lines)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
            self.stdout.write("  ".join([row[0].ljust(widths[0]), *others]).rstrip())


def _present(one: TopicOverview, now: Any) -> Iterable[str]:
    left = None if one.next_due_at is None else (one.next_due_at - now).total_seconds()
    until = "-" if left is None else in_words(left) if left > 0 else "now"
    counts = (one.delayed, one.leased, one.outbox, one.dead_letters)
    late = map(_time, (one.late_p50_ms, one.late_p99_ms))
    name = f"{one.topic} (paused)" if one.paused else one.topic
    return (
        name,
        f"{one.backlog:,}",
        in_words(one.lag),
        until,
        *(f"{n:,}" for n in counts),
        *late,
        str(one.workers),
    )


def _figures(one: PeriodFigures) -> Iterable[str]:
    counts = (one.messages, *one.states.values(), one.retried)
    times = (one.late_p50_ms, one.late_p99_ms, one.run_p50_ms, one.run_p99_ms)
    return *(f"{n:,}" for n in counts), *map(_time, times)


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else in_words(milliseconds / 1000)
