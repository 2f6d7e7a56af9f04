"""Cancel waiting messages: one by its id or key, or all that fit the filters.

Messages that run are not cancelled, nor are those that are enqueued after it began. With --running,
one message is cancelled also while it runs: a coroutine and an isolated run end within a second.
With filters it is a bulk operation: it is recorded, a worker goes on with it after Ctrl-C or a
kill, and the same command finds it again. --dry-run makes all checks, says how many and shows ten.

  python manage.py delayq cancel orders --key order:7 --reason "the customer has paid"
  python manage.py delayq cancel orders --key order:7 --running --reason "it hangs"
  python manage.py delayq cancel orders --task shop.tasks.remind --due-before 2h --dry-run
  python manage.py delayq cancel --task shop.tasks.remind --reason "wrong text" --yes
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...models import BulkKind
from ...operators import operations
from ...operators.waiting_orders import WaitingChange, WaitingSelection
from ...worker.process.runner import ExitCode
from ..changing import WaitingVerb, add_dry_run
from ..cli import Answer, ShellUser, add_record
from ..targets import add_filters, add_one, add_topic, one_target, selection_of


class Command(WaitingVerb):
    """Cancels messages."""

    past = "cancelled"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, and for the record."""
        add_topic(parser, "(default with filters: all topics)")
        add_one(parser)
        add_filters(parser)
        parser.add_argument("--all", action="store_true", help="all that waits in TOPIC")
        parser.add_argument(
            "--running", action="store_true", help="also while it runs; for one message"
        )
        add_dry_run(parser)
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Cancel one message, or all that fit."""
        if options["id"] is not None or options["key"] is not None:
            target = one_target(options)
            if options["dry_run"]:
                raise CommandError(
                    "--dry-run is for filters; `delayq get` shows one message.",
                    returncode=ExitCode.CONFIGURATION,
                )
            message_id = target.identity.hex()
            cancel = operations.cancel_running if options["running"] else operations.cancel
            cancel(ShellUser(options["by"]), target.topic, message_id, reason=options["reason"])
            return Answer(
                text=f"cancelled message {message_id} of topic {target.topic}",
                data={"dry_run": False, "count": 1, "id": message_id, "topic": target.topic},
            )
        if options["running"]:
            raise CommandError(
                "--running is for one message: name it by ID or --key.",
                returncode=ExitCode.CONFIGURATION,
            )
        selection = selection_of(options)
        if selection.is_whole_topic != options["all"] or selection == WaitingSelection():
            raise CommandError(
                "Choose messages: by ID or --key; by --task, --key-prefix, --due-after, "
                "--due-before or --argument; or all of a topic by TOPIC --all.",
                returncode=ExitCode.CONFIGURATION,
            )
        return self.change_all(options, WaitingChange(kind=BulkKind.CANCEL))
