"""Bulk operations on waiting messages: what the verbs `cancel`, `reschedule` and `move` order."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ..core.present import counted, distance, on_one_line
from ..core.times import from_ms
from ..models import BulkOperation, BulkStatus
from ..operators.bulk import progress
from ..operators.waiting_list import preview_waiting
from ..operators.waiting_orders import (
    SAMPLE,
    WaitingChange,
    order_alive,
    run_to_end,
    start_waiting,
)
from ..store import get_store
from ..worker.process.runner import ExitCode
from .cli import Answer, ShellUser, Verb, in_time_zone
from .targets import as_typed, selection_of

_HEAD = ("due", "in", "topic", "task", "key", "id")


def add_dry_run(parser: ArgumentParser) -> None:
    """--dry-run and --yes."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with filters: make all checks, say how many and show ten; change nothing",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with filters: do not ask; needed without a terminal"
    )


class WaitingVerb(Verb):
    """A verb that changes one waiting message, or all that fit filters."""

    past = ""
    """What happens to each: `cancelled`."""
    operation: BulkOperation | None = None

    def change_all(self, options: dict[str, Any], change: WaitingChange) -> Answer:
        """Change all that fit the filters, or show what would be changed."""
        user, selection, reason = ShellUser(options["by"]), selection_of(options), options["reason"]
        if options["dry_run"]:
            dry = start_waiting(user, change, selection, reason=reason, dry_run=True)
            return self._answer(self._run(dry))
        asked = as_typed(options)
        operation = order_alive(change, asked)
        if operation is None:
            if not reason.strip():
                raise CommandError(
                    "Many messages are changed: give --reason.", returncode=ExitCode.CONFIGURATION
                )
            if not options["yes"]:
                found = preview_waiting(user, selection)
                more = "at least " if found.more else ""
                self._confirm(f"{change.kind}: {more}{counted(found.count, 'message')}")
            operation = start_waiting(user, change, selection, reason=reason, asked=asked)
        else:
            words = f"Operation {operation.pk} was ordered before in the same words. It goes on."
            self.stderr.write(words, style_func=str)
        return self._answer(self._run(operation))

    def interrupted(self) -> str:
        """Nobody has to run it again: a worker goes on."""
        if self.operation is None:
            return super().interrupted()
        return (
            f"Interrupted: {self.so_far or 'nothing was changed'}. Operation {self.operation.pk} "
            "waits: a worker goes on with it, or this command when you run it again. The page "
            "Bulk operations can cancel it."
        )

    def _confirm(self, words: str) -> None:
        if not sys.stdin.isatty():
            raise CommandError(
                "Give --yes to do it without a question, or --dry-run to see what it would change.",
                returncode=ExitCode.CONFIGURATION,
            )
        self.stderr.write(f"{words}. Go on? [y/N] ", style_func=str, ending="")
        self.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise CommandError("Nothing was changed.")

    def _run(self, operation: BulkOperation) -> BulkOperation:
        self.operation = operation

        def report(so_far: BulkOperation) -> None:
            figures = progress(so_far)
            self.progress(self._words(so_far), figures.done, figures.total or 0)

        return run_to_end(operation, report)

    def _words(self, operation: BulkOperation) -> str:
        figures = progress(operation)
        would = "would have " if operation.dry_run else ""
        text = f"{would}{self.past} {counted(figures.changed, 'message')}"
        if figures.skipped:
            reasons = ", ".join(f"{why} {number:,}" for why, number in figures.skipped.items())
            text += f", skipped {sum(figures.skipped.values()):,} ({reasons})"
        return text

    def _answer(self, ended: BulkOperation) -> Answer:
        figures, text = progress(ended), self._words(ended)
        text += "; nothing was changed" if ended.dry_run else f" (operation {ended.pk})"
        if ended.status != BulkStatus.DONE:
            raise CommandError(
                f"Operation {ended.pk} is {ended.status}. {ended.error} Before that: {text}."
            )
        data = {
            "operation": ended.pk,
            "dry_run": ended.dry_run,
            "count": figures.changed,
            "skipped": dict(figures.skipped),
        }
        if not ended.dry_run:
            return Answer(text=text, data=data)
        sample = ended.messages.filter(skipped="").order_by("pk")[:SAMPLE]
        at = from_ms(get_store().clock_ms())
        rows = [
            (
                in_time_zone(due := from_ms(message.due_at_ms)),
                distance(due, at),
                message.topic,
                on_one_line(message.task),
                on_one_line(message.key or "-"),
                message.message_id.hex,
            )
            for message in sample
        ]
        data["first"] = [dict(zip(_HEAD, row, strict=True)) for row in rows]
        return Answer(
            text=text,
            data=data,
            rows=[_HEAD, *rows] if rows else (),
            right=(False,) * len(_HEAD),
        )
