"""Give one argument another value: in one waiting message, or in all that fit the filters.

Choose the task by --task: its signature says what the argument takes. With filters it is a bulk
operation: it is recorded, a worker goes on with it after Ctrl-C or a kill, and the same command
finds it again. --dry-run makes all checks, says how many and shows ten.

  python manage.py delayq edit --task shop.tasks.notify --set url=https://new.example --dry-run
  python manage.py delayq edit mail --task shop.tasks.mail --map "template=old->new" --reason "typo"
  python manage.py delayq edit mail --key mail:7 --task shop.tasks.mail --set template=new
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...client import finding
from ...models import BulkKind
from ...operators import operations
from ...operators.waiting_orders import WaitingChange
from ...tasks.argument_edit import NOTHING_TO_EDIT
from ...worker.process.runner import ExitCode
from ..changing import WaitingVerb, add_dry_run
from ..cli import Answer, ShellUser, add_record
from ..editing import add_edit, asked_edit
from ..targets import add_filters, add_one, add_topic, one_target


class Command(WaitingVerb):
    """Edits arguments."""

    past = "edited"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, what becomes of the argument, and for the record."""
        add_topic(parser, "(default with filters: all topics)")
        add_one(parser)
        add_filters(parser)
        add_edit(parser, required=True)
        add_dry_run(parser)
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Edit one message, or all that fit."""
        edit = asked_edit(options)
        assert edit is not None, "one of the options is required"
        if options["id"] is None and options["key"] is None:
            return self.change_all(options, WaitingChange(kind=BulkKind.EDIT, edit=edit))
        # Of one message --task is no filter: it says whose argument it is.
        target = one_target({**options, "task": None})
        message = finding.get(target.topic, None, target.identity)
        if message is None:
            raise target.not_live()
        if message.task != edit.task:
            raise CommandError(
                f"The message is one of {message.task}.", returncode=ExitCode.CONFIGURATION
            )
        after = edit.edited(message.topic, (list(message.args), dict(message.kwargs)))
        if after is None:
            raise CommandError(f"Message {message.id}: {NOTHING_TO_EDIT}.")
        if not options["dry_run"]:
            user = ShellUser(options["by"])
            operations.edit(user, message.topic, message.id, after, reason=options["reason"])
        would = "would have " if options["dry_run"] else ""
        return Answer(
            text=f"{would}edited message {message.id} of topic {message.topic}",
            data={"dry_run": options["dry_run"], "count": 1, "id": message.id},
        )
