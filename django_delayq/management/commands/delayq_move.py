"""manage.py delayq_move: what waits in one topic waits in another one."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import dataclass
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error

from ...client import topics
from ...client.moving import Moved
from ...core.exceptions import DelayQError
from ...operators import operations
from ...outbox.listing import CAP, count_outbox
from ...tasks.registry import check_topic
from .delayq_replay import Reporter, failed, interrupted, operator


@dataclass(frozen=True)
class Shell:
    """Whoever may run commands may do this."""

    name: str

    def has_perm(self, permission: str) -> bool:
        """Everything."""
        return True

    def get_username(self) -> str:
        """For the record."""
        return self.name


class Command(BaseCommand):
    """Moves a topic. Exit codes: 0 done, 1 error, 2 wrong options, 3 no Redis, 130 Ctrl-C."""

    help = (
        "Moves all that waits in a topic to another one, for example after it was renamed. "
        "Messages keep their due "
        "times, attempts and keys. Ctrl-C ends it safely; run it again to go on."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """From where to where, and for the record."""
        parser.add_argument("topic", help="the topic to empty; nobody has to declare it")
        parser.add_argument(
            "--to", required=True, help="a topic that a task or DELAYQ['TOPICS'] declares"
        )
        parser.add_argument("--reason", default="", help="why, for the record")
        parser.add_argument(
            "--by", help="who, for the record (default: the user of the operating system)"
        )
        parser.add_argument("--dry-run", action="store_true", help="say how many; change nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        """Move, and say how many it was."""
        said, so_far = Reporter(self.stderr), Moved()

        def progress(moved: Moved) -> None:
            nonlocal so_far
            so_far = moved
            said.show(str(moved))

        topic, to = options["topic"], options["to"]
        try:
            if options["dry_run"]:
                return self._show(topic, to)
            user = Shell(operator(options["by"]))
            done = operations.move(user, topic, to, reason=options["reason"], progress=progress)
        except KeyboardInterrupt:
            said.clear()
            interrupted(self, f"{so_far}. Run it again to go on.")
        except (DelayQError, Error) as error:
            said.clear()
            raise failed(error, str(so_far) if so_far.moved else "") from error
        said.clear()
        self.stdout.write(str(done))
        return None

    def _show(self, topic: str, to: str) -> None:
        check_topic(to)
        stats, outbox = topics.topic_stats(topic), count_outbox(topic)
        waiting = f"{stats.delayed + stats.backlog:,} messages wait in Redis"
        more = "+" if outbox == CAP else ""
        self.stdout.write(
            f"{waiting}, {outbox:,}{more} in the outbox; {stats.leased:,} run. Nothing was changed"
        )
