"""Compare Redis, the outbox and the archive, and repair what is lost, twice or in a wrong place.

Nothing is changed without --repair. What looks wrong is checked again after a pause, because a
message that moves meanwhile looks wrong, too. Each repair is one script that checks once more, and
has a record of its own. Memory stays the same whatever the size; `delayq pipeline audit` does the
same on Spark, and compares the lake, too.

  python manage.py delayq doctor
  python manage.py delayq doctor --repair --topic orders --json

Exit codes: 0 all is well, 1 error (also: no Redis), 2 wrong options, 3 there were differences, also
when all of them are repaired: the next look is clean then.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...core.job_report import Code
from ...operators.doctor import doctor
from ...operators.doctor.conclusion import Looks
from ...store import get_store
from ...worker.process.runner import ExitCode
from ..cli import Answer, Verb, add_by, filled, parse_duration, whole


class Command(Verb):
    """Compares, and repairs."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to look at, and whether to repair."""
        parser.add_argument("--repair", action="store_true", help="repair each difference")
        parser.add_argument("--topic", type=filled, help="only this topic")
        parser.add_argument(
            "--pause",
            type=parse_duration,
            default=parse_duration("5s"),
            metavar="DURATION",
            help="time between the two looks (default: 5s)",
        )
        parser.add_argument(
            "--most",
            type=whole(),
            default=10_000,
            metavar="COUNT",
            help="differences of a kind that are checked again and repaired; all are counted "
            "(default: 10,000)",
        )
        add_by(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Both looks, and the repairs."""
        store = get_store()
        store.clock_ms()  # without Redis there is nothing to compare
        looks = Looks(
            repair=options["repair"],
            by=options["by"] or "",
            pause=options["pause"].total_seconds(),
            most=options["most"],
        )
        report = doctor.examine(store, looks, options["topic"] or "", self.progress)
        data = {
            **report.figures,
            "differences": report.rows,
            "problems": report.problems,
            "code": int(report.code),
        }
        text = report.as_text()
        if report.code == Code.DONE:
            text = f"all is well: {report.figures['read']:,} ids and rows were compared"
        elif not options["repair"]:
            text += "\nnothing was changed; --repair repairs"
        return Answer(text=text, data=data, code=int(report.code))

    def failure(self, error: Exception) -> CommandError:
        """3 is for differences."""
        failed = super().failure(error)
        if failed.returncode == ExitCode.UNREACHABLE:
            failed.returncode = int(ExitCode.ERROR)
        return failed

    def committed(self) -> str:
        """What is read changes nothing."""
        return "what was repaired stays, and is recorded" if self.so_far else ""
