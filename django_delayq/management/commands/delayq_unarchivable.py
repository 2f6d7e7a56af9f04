"""manage.py delayq_unarchivable: what the archive refused is listed, and archived again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error
from django.db.models import QuerySet
from django.utils import timezone

from ...archive.unarchivable import ArchivedAgain, archive_again, shown
from ...core.exceptions import DelayQError
from ...core.text import on_one_line
from ...models import UnarchivableEntry
from ...worker.process.runner import ExitCode
from .delayq_replay import Reporter, failed, interrupted, operator


class Command(BaseCommand):
    """What the archive refused. Exit codes: 0 done, 1 error or refused again, 2 options, 3 no
    Redis, 130 Ctrl-C."""

    help = (
        "Lists the messages that the archive refused, or archives them again. Ctrl-C ends it "
        "safely."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to do, with which, and for the record."""
        parser.add_argument(
            "what", choices=("list", "archive"), help="show them, or try again to archive them"
        )
        parser.add_argument(
            "ids", nargs="*", type=int, metavar="id", help="as the list shows them (default: all)"
        )
        parser.add_argument("--topic", help="only of this topic")
        parser.add_argument("--reason", default="", help="why, for the record")
        parser.add_argument(
            "--by", help="who, for the record (default: the user of the operating system)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """List them, or archive them again and say how many."""
        rows: QuerySet[UnarchivableEntry] = UnarchivableEntry.objects.all()
        rows = rows.filter(pk__in=options["ids"]) if options["ids"] else rows
        rows = rows.filter(topic=options["topic"]) if options["topic"] else rows
        try:
            if options["what"] == "list":
                self._list(rows)
                return
            done = self._archive(rows, options)
        except (DelayQError, Error) as error:
            raise failed(error) from error
        self.stdout.write(_summary(done))
        if done.refused:
            raise CommandError("Some were refused again: list says why.", returncode=ExitCode.ERROR)

    def _list(self, rows: QuerySet[UnarchivableEntry]) -> None:
        for row in rows.order_by("pk").iterator(chunk_size=100):
            made = (
                row.created_at
                if timezone.is_naive(row.created_at)
                else timezone.localtime(row.created_at)
            )
            entry = shown(row)
            parts = (
                row.topic,
                row.state,
                row.message_id,
                entry.task,
                entry.body.key or "-",
                row.error,
            )
            words = "  ".join(on_one_line(part) for part in parts)
            self.stdout.write(f"{row.pk}  {made.isoformat(' ', 'seconds')}  {words}")

    def _archive(self, rows: QuerySet[UnarchivableEntry], options: dict[str, Any]) -> ArchivedAgain:
        said = Reporter(self.stderr)
        so_far: list[ArchivedAgain] = []

        def progress(done: ArchivedAgain) -> None:
            so_far[:] = [done]
            said.show(_summary(done))

        try:
            return archive_again(
                rows,
                by=operator(options["by"]),
                reason=options["reason"][:1_000],
                progress=progress,
            )
        except KeyboardInterrupt:
            said.clear()
            interrupted(
                self,
                f"{_summary(so_far[0]) if so_far else 'nothing is archived'}. Run it again to go "
                f"on.",
            )
        finally:
            said.clear()


def _summary(done: ArchivedAgain) -> str:
    text = f"archived {done.count:,} {'entry' if done.count == 1 else 'entries'}"
    if done.refused:
        words = ", ".join(f"{name} {number:,}" for name, number in sorted(done.refused.items()))
        text += f", refused again {sum(done.refused.values()):,} ({words})"
    return text
