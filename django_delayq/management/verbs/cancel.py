"""Cancel waiting messages: one by its id or key, or all that fit the filters.

Messages that run are not cancelled, nor are those that are enqueued after it began. With filters,
--dry-run says how many fit and shows ten. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq cancel orders --key order:7 --reason "the customer has paid"
  python manage.py delayq cancel orders --task shop.tasks.remind --due-before 2h --dry-run
  python manage.py delayq cancel --task shop.tasks.remind --reason "wrong text"
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...core.present import counted
from ...core.times import from_ms
from ...operators import operations
from ...operators.waiting_selection import cancel_waiting, waiting_messages
from ...store import get_store
from ...worker.process.runner import ExitCode
from ..cli import Answer, ShellUser, Verb, add_record, filled
from ..targets import HEAD, RIGHT, add_filters, add_one, one_target, selection_of, table_row


class Command(Verb):
    """Cancels messages."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, and for the record."""
        parser.add_argument(
            "topic",
            type=filled,
            nargs="?",
            metavar="TOPIC",
            help="(default with filters: all topics)",
        )
        add_one(parser)
        add_filters(parser)
        parser.add_argument("--all", action="store_true", help="all that waits in TOPIC")
        parser.add_argument(
            "--dry-run", action="store_true", help="say how many and show ten; change nothing"
        )
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Cancel one message, or all that fit."""
        user, reason = ShellUser(options["by"]), options["reason"]
        if options["id"] is not None or options["key"] is not None:
            target = one_target(options)
            if options["dry_run"]:
                raise CommandError(
                    "--dry-run is for filters; `delayq get` shows one message.",
                    returncode=ExitCode.CONFIGURATION,
                )
            message_id = target.identity.hex()
            operations.cancel(user, target.topic, message_id, reason=reason)
            return Answer(
                text=f"cancelled message {message_id} of topic {target.topic}",
                data={"dry_run": False, "count": 1, "id": message_id, "topic": target.topic},
            )
        selection = selection_of(options)
        is_topic = selection == type(selection)(topic=selection.topic)
        if is_topic != options["all"] or (options["all"] and not selection.topic):
            raise CommandError(
                "Choose messages: by ID or --key; by --task, --key-prefix, --due-after or "
                "--due-before; or all of a topic by TOPIC --all.",
                returncode=ExitCode.CONFIGURATION,
            )
        if options["dry_run"]:
            now, shown, count = from_ms(get_store().clock_ms()), [], 0
            for count, message in enumerate(waiting_messages(selection), 1):
                if count <= 10:
                    shown.append(message)
            return Answer(
                text=f"would have cancelled {counted(count, 'message')}; nothing was changed",
                data={"dry_run": True, "count": count, "first": shown},
                rows=[HEAD, *(table_row(message, now) for message in shown)] if shown else (),
                right=RIGHT,
            )

        done = cancel_waiting(
            user, selection, reason=reason, progress=lambda done: self.progress(str(done))
        )
        return Answer(text=str(done), data={"dry_run": False, "count": done.count})
