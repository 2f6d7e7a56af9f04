"""Send dead letters again, each of them once.

Choose them with filters, or take all with --all. Each becomes a new message of the same task, with
the same arguments, through the outbox. --set, --map, --replace and --remove change one argument on
the way; they need --task. Ctrl-C ends it safely: run it again to go on, and nothing is replayed
twice. --dry-run makes all checks and changes nothing.

  python manage.py delayq replay --topic orders --error Timeout --since 2h --dry-run
  python manage.py delayq replay --topic orders --error Timeout --since 2h --rate 50
  python manage.py delayq replay --task shop.tasks.notify --set url=https://shop.example/hook
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from ...operators.replay import preview_replay, replay
from ..cli import DURATIONS, Answer, parse_duration, positive
from ..editing import add_edit, asked_edit
from ..selecting import SelectingVerb


class Command(SelectingVerb):
    """Sends dead letters again."""

    past = "replayed"
    change = staticmethod(replay)
    foresee = staticmethod(preview_replay)
    passed = ("delay", "rate", "force", "limit", "by", "reason", "edit")
    foreseen = ("force", "limit", "edit")

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
        add_edit(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Replay the selection, or show it."""
        return super().run({**options, "edit": asked_edit(options)})
