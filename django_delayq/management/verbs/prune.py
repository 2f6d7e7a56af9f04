"""Delete rows of the archive that finished long ago.

Dead letters that nobody has replayed or discarded are kept, unless --state dead is given. Rows
whose messages Redis still has are kept too. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq prune --older-than 30d --dry-run
  python manage.py delayq prune --older-than 7d --state acked
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...archive.prune import Pruned, prune
from ...core.present import counted
from ...models import Final
from ..cli import DURATIONS, Answer, Verb, add_by, committed_count, parse_duration


class Command(Verb):
    """Deletes old rows of the archive."""

    pruned: Pruned | None = None

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How old, which, and for the record."""
        parser.add_argument(
            "--older-than",
            type=parse_duration,
            required=True,
            metavar="DURATION",
            help=f"finished longer ago than this: {DURATIONS}; at least 1h",
        )
        parser.add_argument(
            "--state",
            choices=Final.values,
            help="only rows in this state (default: all but dead letters still open)",
        )
        parser.add_argument(
            "--whole-months",
            action="store_true",
            help="in a partitioned archive: leave rows of months that are not over yet, to be "
            "dropped with them",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="say how many rows; change nothing"
        )
        add_by(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Delete the rows."""
        verb = "would have deleted" if options["dry_run"] else "deleted"

        def progress(pruned: Pruned) -> None:
            self.pruned = pruned
            self.progress(f"{verb} {counted(pruned.count, 'row')}")

        end = prune(
            options["older_than"],
            state=options["state"],
            whole_months=options["whole_months"],
            dry_run=options["dry_run"],
            by=options["by"],
            progress=progress,
        )
        line = f"{verb} {counted(end.count, 'row')}"
        if end.kept:
            line += f"; kept {end.kept:,} open dead letters (they go with --state dead)"
        if end.needed:
            line += f"; kept {end.needed:,} whose messages Redis still has"
        data = {
            "dry_run": options["dry_run"],
            "count": end.count,
            "kept": end.kept,
            "needed": end.needed,
        }
        return Answer(text=line, data=data)

    def committed(self) -> str:
        """How many rows the record counts."""
        if self.pruned is None or self.pruned.action is None:
            return self.so_far
        count = committed_count(self.pruned.action, self.pruned.count)
        return f"deleted {counted(count, 'row')}"
