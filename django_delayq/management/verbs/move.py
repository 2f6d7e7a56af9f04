"""Move the messages that wait in a topic, or all that fit the filters, to another topic.

Use it after a topic was renamed. Messages keep their due times, attempts and keys. A message stays
where its key is live in the other topic. Ctrl-C ends it safely: run it again to go on. With filters
it is a bulk operation: it is recorded, a worker goes on with it after Ctrl-C or a kill, and the
same command finds it again.

  python manage.py delayq move jobs --to orders --dry-run
  python manage.py delayq move --task shop.tasks.remind --to mail --reason "own workers" --yes
  python manage.py delayq move jobs --to orders --reason "renamed in release 12"
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from ...client import topics
from ...models import BulkKind
from ...operators import operations
from ...operators.waiting_orders import WaitingChange
from ...outbox.listing import CAP, count_outbox
from ...tasks.registry import check_topic
from ...worker.process.runner import ExitCode
from ..changing import WaitingVerb, add_dry_run
from ..cli import Answer, ShellUser, add_record
from ..targets import add_filters, add_topic, selection_of


class Command(WaitingVerb):
    """Moves a topic, or some of its messages."""

    past = "moved"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """From where to where, and for the record."""
        add_topic(parser, "the topic to empty; it need not be declared")
        add_filters(parser)
        parser.add_argument(
            "--to",
            required=True,
            metavar="TOPIC",
            help="a topic that a task or DELAYQ['TOPICS'] declares",
        )
        add_dry_run(parser)
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Move the messages."""
        topic, to = options["topic"], options["to"]
        if not selection_of(options).is_whole_topic:
            return self.change_all(options, WaitingChange(kind=BulkKind.MOVE, to=to))
        if not topic:
            raise CommandError("Give TOPIC, or filters.", returncode=ExitCode.CONFIGURATION)
        check_topic(to)
        stats, outbox = topics.topic_stats(topic), count_outbox(topic)
        waiting = stats.delayed + stats.backlog
        if options["dry_run"]:
            text = (
                f"{waiting:,} messages wait in Redis, {outbox:,}"
                f"{'+' if outbox == CAP else ''} in the outbox; {stats.leased:,} run. "
                "Nothing was changed"
            )
            data = {
                "dry_run": True,
                "redis": waiting,
                "outbox": outbox,
                "running": stats.leased,
            }
            return Answer(text=text, data=data)

        done = operations.move(
            ShellUser(options["by"]),
            topic,
            to,
            reason=options["reason"],
            progress=lambda moved: self.progress(str(moved), moved.moved, waiting + outbox),
        )
        return Answer(text=str(done), data={"dry_run": False, **asdict(done)})
