"""List the messages that the archive refused, or archive them again.

`list` shows each entry with its id and the error of the database. `archive` tries again, for all
entries or for those that are named. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq unarchivable list
  python manage.py delayq unarchivable archive 17 18 --reason "the trigger is gone"
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db.models import QuerySet

from ...archive.unarchivable import ArchivedAgain, archive_again, entry_view
from ...core.present import on_one_line
from ...models import UnarchivableEntry
from ...worker.process.runner import ExitCode
from ..cli import Answer, Verb, add_record, filled, in_time_zone, whole


class Command(Verb):
    """Lists or archives what the archive refused."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to do, with which entries, and for the record."""
        parser.add_argument(
            "what", choices=("list", "archive"), help="show them, or try again to archive them"
        )
        parser.add_argument(
            "ids",
            nargs="*",
            type=whole(1, 2**63 - 1),
            metavar="ID",
            help="as the list shows them (default: all)",
        )
        parser.add_argument("--topic", type=filled, help="only entries of this topic")
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """List the entries, or archive them again and say how many."""
        rows: QuerySet[UnarchivableEntry] = UnarchivableEntry.objects.all()
        rows = rows.filter(pk__in=options["ids"]) if options["ids"] else rows
        rows = rows.filter(topic=options["topic"]) if options["topic"] else rows
        if options["what"] == "list":
            entries, lines = [], []
            for row in rows.order_by("pk").iterator(chunk_size=100):
                entry = entry_view(row)
                parts = (
                    row.topic,
                    row.state,
                    row.message_id,
                    entry.task,
                    entry.body.key or "-",
                    row.error,
                )
                words = "  ".join(on_one_line(part) for part in parts)
                lines.append(f"{row.pk}  {in_time_zone(row.created_at)}  {words}")
                entries.append(
                    {
                        "id": row.pk,
                        "at": row.created_at,
                        "topic": row.topic,
                        "state": row.state,
                        "message_id": row.message_id,
                        "task": entry.task,
                        "key": entry.body.key,
                        "error": row.error,
                    }
                )
            return Answer(text="\n".join(lines), data=entries)

        done = archive_again(
            rows,
            by=options["by"],
            reason=options["reason"][:1_000],
            progress=lambda done: self.progress(_summary(done)),
        )
        answer = Answer(
            text=_summary(done), data={"count": done.count, "refused": dict(done.refused)}
        )
        if done.refused:
            self.reporter.clear()
            self.show(answer, options)
            raise CommandError(
                "The database refused some entries again. Run `delayq unarchivable list`: it shows "
                "the error of each.",
                returncode=ExitCode.ERROR,
            )
        return answer


def _summary(done: ArchivedAgain) -> str:
    text = f"archived {done.count:,} {'entry' if done.count == 1 else 'entries'}"
    if done.refused:
        words = ", ".join(f"{name} {number:,}" for name, number in sorted(done.refused.items()))
        text += f", refused again {sum(done.refused.values()):,} ({words})"
    return text
