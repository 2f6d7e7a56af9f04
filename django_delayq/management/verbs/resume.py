"""Let a paused topic go on.

Messages that fell due meanwhile start at once.

  python manage.py delayq resume orders --reason "payments work again"
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...operators import operations
from ..cli import Answer, ShellUser, Verb, add_record


class Command(Verb):
    """Resumes a topic."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which topic, and for the record."""
        parser.add_argument("topic", metavar="TOPIC", help="the topic")
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """Resume it."""
        topic = options["topic"]
        operations.resume(ShellUser(options["by"]), topic, reason=options["reason"])
        return Answer(text=f"topic {topic} goes on", data={"topic": topic, "paused": False})
