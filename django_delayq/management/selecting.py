"""A selection of dead letters, as the verbs `replay` and `discard` take it."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.core.management.base import CommandError

from ..archive.selection import Rows, Selection
from ..core.present import counted, on_one_line
from ..models import Final
from ..operators.replay import Preview, Replayed
from ..worker.process.runner import ExitCode
from .cli import (
    Answer,
    Verb,
    add_record,
    committed_count,
    filled,
    in_time_zone,
    parse_instant,
    whole,
)

#: The options that choose, beside --all.
_FILTERS = ("topic", "task", "error", "since", "until")


class SelectingVerb(Verb):
    """A verb that changes a selection of dead letters."""

    past: ClassVar[str]
    """What happens to each: `replayed`."""
    change: ClassVar[Callable[..., Replayed]]
    """Replays the rows, or discards them: the call of operators/replay.py, as a static method."""
    passed: ClassVar[Sequence[str]]
    """The options that it takes."""
    foresee: ClassVar[Callable[..., Preview]]
    """Its dry run, as a static method."""
    foreseen: ClassVar[Sequence[str]]
    """The options that the dry run takes."""
    reason_required = False
    replayed: Replayed | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, and for the record."""
        parser.add_argument("--topic", type=filled, help="dead letters of this topic")
        parser.add_argument("--task", type=filled, help="dead letters of this task")
        parser.add_argument(
            "--error",
            type=filled,
            help="class of the error, in full or its last part, or the word of the reason",
        )
        parser.add_argument(
            "--since",
            type=parse_instant,
            metavar="TIME",
            help="died then or later: 2h, 30d (ago), a date or a datetime",
        )
        parser.add_argument("--until", type=parse_instant, metavar="TIME", help="died before then")
        parser.add_argument("--all", action="store_true", help="every dead letter")
        parser.add_argument(
            "--limit",
            type=whole(),
            metavar="COUNT",
            help="at most this many messages, the oldest first",
        )
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="make all checks, say how many and show ten; change nothing",
        )
        add_record(parser, reason=self.reason_required)

    def run(self, options: dict[str, Any]) -> Answer:
        """Change the selection, or show it."""
        rows = selected(options)
        if options["dry_run"]:
            found = self.foresee(rows, **{name: options[name] for name in self.foreseen})
            summary = self._summary(found.count, found.skipped)
            lines = [f"would have {summary}; nothing was changed"]
            for row in found.first:
                error = row.error_class or row.reason or "-"
                parts = (row.task, row.key or "-", error, in_time_zone(row.finished_at))
                lines.append("  " + "  ".join(on_one_line(part) for part in parts))
            if found.count > len(found.first) > 0:
                lines.append(f"  ... and {found.count - len(found.first):,} more")
            data = {"dry_run": True, "count": found.count, "skipped": dict(found.skipped)}
            return Answer(text="\n".join(lines), data=data)

        def progress(replayed: Replayed) -> None:
            self.replayed = replayed
            self.progress(self._summary(replayed.count, replayed.skipped))

        end = self.change(rows, progress=progress, **{name: options[name] for name in self.passed})
        return Answer(
            text=self._summary(end.count, end.skipped),
            data={"dry_run": False, "count": end.count, "skipped": dict(end.skipped)},
        )

    def committed(self) -> str:
        """How many messages the record counts."""
        if self.replayed is None:
            return self.so_far
        return self._summary(committed_count(self.replayed.action, self.replayed.count), {})

    def _summary(self, count: int, skipped: dict[str, int]) -> str:
        text = f"{self.past} {counted(count, 'message')}"
        if skipped:
            reasons = sorted(skipped.items(), key=lambda item: -item[1])
            words = ", ".join(f"{why} {number:,}" for why, number in reasons)
            text += f", skipped {sum(skipped.values()):,} ({words})"
        return text


def selected(options: dict[str, Any]) -> Rows:
    """The dead letters that the options choose. Raises CommandError when they choose none or
    contradict each other."""
    given = {name: options[name] for name in _FILTERS if options[name]}
    if options["all"] and given:
        raise CommandError(
            "--all contradicts the other filters: give --all, or filters.",
            returncode=ExitCode.CONFIGURATION,
        )
    if not (options["all"] or given):
        raise CommandError(
            "No dead letters are chosen. Give --topic, --task, --error, --since or --until; or "
            "--all for every dead letter.",
            returncode=ExitCode.CONFIGURATION,
        )
    return Selection(state=Final.DEAD, **given).rows()
