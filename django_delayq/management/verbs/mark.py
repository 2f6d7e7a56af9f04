"""Leave a mark in the charts, such as the version that a deploy has brought.

The charts of the last 3 and 24 hours show it as a line, beside those of operators' actions. It also
stands among the operator actions.

  python manage.py delayq mark "v2.3"
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...stats.marks import leave_mark
from ..cli import Answer, ShellUser, Verb, add_by


class Command(Verb):
    """Notes an event."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What happened, and who says so."""
        parser.add_argument("words", metavar="WORDS", help="what happened, up to 60 characters")
        add_by(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Store it."""
        user = ShellUser(options["by"])
        action = leave_mark(options["words"], user.get_username())
        return Answer(
            text=f"marked: {action.selection}",
            data={"words": action.selection, "at": action.started_at},
        )
