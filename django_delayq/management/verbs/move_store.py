"""Move the store to another Redis while everything runs.

Name the new server in DELAYQ["REDIS_NEXT"] and start all processes again, then run this. Calls
wait while everything is carried over; then all processes change over by themselves. Run it again
after an error or a kill: either the old store serves, or the new one is whole.

  python manage.py delayq move-store --dry-run
  python manage.py delayq move-store --reason "new machine"
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from ...core.conf import get_settings
from ...core.exceptions import ConfigurationError, MoveRefused
from ...models import OperatorAction
from ...store.connection import mask
from ...store.moving.mover import Counts, MoveReport, StoreMover
from ..cli import Answer, Verb, add_record, positive

#: The rows of the answer.
_WORDS = {
    "waiting": "waiting messages",
    "leased": "running messages",
    "records": "records",
    "finished": "not yet archived",
    "followers": "followers",
    "topics": "topics",
}


class Command(Verb):
    """Moves the store."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How to move it, and for the record."""
        parser.add_argument(
            "--dry-run", action="store_true", help="check everything, and change nothing"
        )
        parser.add_argument(
            "--way",
            choices=("copy", "replica"),
            default="",
            help="copy the keys while calls wait, or let the new server be a replica first "
            "(default: copy up to 100,000 messages)",
        )
        parser.add_argument(
            "--limit",
            type=positive,
            default=5.0,
            metavar="SECONDS",
            help="give up when calls have waited for so long (default: %(default)g)",
        )
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Check, move, and say what both sides have."""
        settings = get_settings()
        if not settings.redis_next:
            raise ConfigurationError(
                'DELAYQ["REDIS_NEXT"] is missing. Name the new Redis there, and start all '
                "processes again before the store moves."
            )
        mover = StoreMover(settings, self.progress)
        try:
            return self._run(mover, options)
        finally:
            mover.close()

    def _run(self, mover: StoreMover, options: dict[str, Any]) -> Answer:
        state = mover.state().state
        old, new = mask(mover.settings.redis), mask(mover.settings.redis_next)
        if state == "frozen" and not options["dry_run"]:
            mover.undo(mover.state())  # of a command that was killed
        if options["dry_run"] and state in ("frozen", "moved"):
            return Answer(text=f"The store at {old} is {state}.", data={"state": state})
        if state == "moved":
            way = options["way"] or "copy"
        else:
            plan = mover.plan(options["way"])
            way = plan.by
            if plan.problems:
                raise MoveRefused("\n".join(("The store stays where it is.", *plan.problems)))
            if options["dry_run"]:
                return Answer(
                    text=f"Nothing speaks against it. By {plan.by}, from {old} ({plan.old}) to "
                    f"{new} ({plan.new}); their clocks differ by {abs(plan.skew_ms):.0f} ms.",
                    data=asdict(plan),
                    rows=[("what", "old"), *_rows(plan.counts)],
                    right=(False, True),
                )
        with OperatorAction.recorded(
            "move store",
            options["by"],
            options["reason"][:1_000],
            selection=f"from {old} to {new} by {way}",
        ) as action:
            moved = mover.run(way, options["limit"])
            action.add(moved.before.records)
        return _report(moved, old, new)


def _report(moved: MoveReport, old: str, new: str) -> Answer:
    text = f"The store has moved from {old} to {new}"
    if moved.frozen_ms:
        text += f"; calls waited for up to {moved.frozen_ms:,} ms"
    text += (
        ". Now name the new Redis in DELAYQ['REDIS'], remove REDIS_NEXT, and start the processes "
        "again one by one. Leave the old server as it is until then."
    )
    if not moved.saved:
        text += (
            " The old server did not write its file (BGSAVE was refused): if it is started again "
            "on an older file, processes that do not know of the move would use it."
        )
    return Answer(
        text=text,
        data=asdict(moved),
        rows=[
            ("what", "old", "new"),
            *(
                (word, before, after)
                for (word, before), (_, after) in zip(
                    _rows(moved.before), _rows(moved.after), strict=True
                )
            ),
        ],
        right=(False, True, True),
    )


def _rows(counts: Counts) -> list[tuple[str, str]]:
    return [(word, f"{getattr(counts, name):,}") for name, word in _WORDS.items()]
