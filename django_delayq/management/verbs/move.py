"""Move the messages that wait in a topic to another topic.

Use it after a topic was renamed. Messages keep their due times, attempts and keys. A message stays
where its key is live in the other topic. Ctrl-C ends it safely: run it again to go on.

  python manage.py delayq move jobs --to orders --dry-run
  python manage.py delayq move jobs --to orders --reason "renamed in release 12"
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from ...client import topics
from ...operators import operations
from ...outbox.listing import CAP, count_outbox
from ...tasks.registry import check_topic
from ..cli import Answer, ShellUser, Verb, add_record


class Command(Verb):
    """Moves a topic."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """From where to where, and for the record."""
        parser.add_argument("topic", help="the topic to empty; nobody has to declare it")
        parser.add_argument(
            "--to",
            required=True,
            metavar="TOPIC",
            help="a topic that a task or DELAYQ['TOPICS'] declares",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="say how many messages; change nothing"
        )
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Move the messages."""
        topic, to = options["topic"], options["to"]
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
