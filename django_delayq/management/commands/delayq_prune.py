"""manage.py delayq_prune: what is old goes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error

from ...archive.prune import Pruned, prune
from ...core.exceptions import DelayQError
from ...models import Final, OperatorAction
from .delayq_replay import Reporter, duration, failed, interrupted, operator


class Command(BaseCommand):
    """Deletes old rows of the archive. Exit codes: 0 done, 1 error, 2 wrong options, 130 Ctrl-C."""

    help = (
        "Deletes rows of the archive that finished long ago; dead letters that nobody has replayed "
        "or discarded only "
        "with --state dead. Ctrl-C ends it safely."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How old, which, and for the record."""
        parser.add_argument(
            "--older-than", type=duration, required=True, help="90s 15m 2h 30d 4w; 1h or more"
        )
        parser.add_argument(
            "--state", choices=Final.values, help="only these (default: all but open dead letters)"
        )
        parser.add_argument(
            "--by", help="who, for the record (default: the user of the operating system)"
        )
        parser.add_argument("--dry-run", action="store_true", help="say how many; change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete, and say how many."""
        reporter, dry = Reporter(self.stderr), options["dry_run"]
        self._so_far: Pruned | None = None

        def progress(pruned: Pruned) -> None:
            self._so_far = pruned
            reporter.show(_summary(pruned.count, dry))

        try:
            by = operator(options["by"])
            end = prune(
                options["older_than"], state=options["state"], dry_run=dry, by=by, progress=progress
            )
        except KeyboardInterrupt:
            reporter.clear()
            interrupted(self, f"{self._counted()}. Run it again to go on.")
        except (DelayQError, Error) as error:
            reporter.clear()
            raise failed(
                error, _summary(self._so_far.count, dry) if self._so_far else ""
            ) from error
        reporter.clear()
        kept = (
            f"; kept {end.kept:,} open dead letters (they go with --state dead)" if end.kept else ""
        )
        needed = f"; kept {end.needed:,} whose messages Redis still has" if end.needed else ""
        self.stdout.write(_summary(end.count, dry) + kept + needed)

    def _counted(self) -> str:
        """What is committed: the last transaction may have been, without a word from it."""
        if self._so_far is None or self._so_far.action is None:
            return _summary(0, False)
        action = OperatorAction.objects.filter(pk=self._so_far.action.pk).first()
        return _summary(action.count if action else self._so_far.count, False)


def _summary(count: int, dry: bool) -> str:
    return (
        f"{'would have deleted' if dry else 'deleted'} {count:,} {'row' if count == 1 else 'rows'}"
    )
