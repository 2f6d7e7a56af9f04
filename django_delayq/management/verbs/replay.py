"""Send dead letters again, each of them once.

Choose them with filters, or take all with --all. Each becomes a new message of the same task, with
the same arguments, through the outbox. Ctrl-C ends it safely: run it again to go on, and nothing is
replayed twice.

  python manage.py delayq replay --topic orders --error Timeout --since 2h --dry-run
  python manage.py delayq replay --topic orders --error Timeout --since 2h --rate 50
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta

from ...operators.replay import replay
from ..cli import DURATIONS, parse_duration, positive
from ..selecting import SelectingVerb


class Command(SelectingVerb):
    """Sends dead letters again."""

    past = "replayed"
    change = staticmethod(replay)
    passed = ("delay", "rate", "force", "limit", "by", "reason")

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, how they are sent, and for the record."""
        super().add_arguments(parser)
        parser.add_argument(
            "--delay",
            type=parse_duration,
            default=timedelta(),
            metavar="DURATION",
            help=f"they are due this long after now: {DURATIONS} (default: at once)",
        )
        parser.add_argument(
            "--rate",
            type=positive,
            metavar="NUMBER",
            help="this many messages become due per second (default: all together)",
        )
        parser.add_argument(
            "--force", action="store_true", help="also what was replayed or discarded before"
        )
