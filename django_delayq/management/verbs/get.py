"""Show one live message: its task, arguments, due time and runs.

A message is named by its topic and its id or key. A message that has ended is not live: `delayq
find` shows what became of it.

  python manage.py delayq get orders --key order:7
  python manage.py delayq get orders 0192f0c1a2b3740d8e5f60718293a4b5 --json
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...client import finding
from ...core.present import distance, on_one_line
from ...core.times import from_ms
from ...store import get_store
from ...tasks.arguments import in_one_line, write_json
from ...tasks.redaction import shown_message
from ..cli import Answer, Verb, in_time_zone
from ..targets import add_one, one_target


class Command(Verb):
    """Shows a message."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which message."""
        parser.add_argument("topic", metavar="TOPIC", help="the topic of the message")
        add_one(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """All that is known of it."""
        target = one_target(options)
        message = finding.get(target.topic, None, target.identity)
        if message is None:
            raise target.not_live()
        message = shown_message(message)
        now = from_ms(get_store().clock_ms())
        expires_at = message.expires_at
        fields = {
            "id": message.id,
            "topic": message.topic,
            "task": message.task,
            "key": message.key or "-",
            "state": message.state.value,
            "due": f"{in_time_zone(message.due_at)} ({distance(message.due_at, now)})",
            "enqueued": in_time_zone(message.enqueued_at),
            "expires": in_time_zone(expires_at) if expires_at else "never",
            "priority": message.priority.name.lower(),
            "attempt": f"{message.attempt}, crashes: {message.crashes}",
            "calls with": in_one_line(message.args, message.kwargs, 10_000) or "nothing",
            "headers": in_one_line((), message.headers, 10_000) or "-",
            "replays": str(message.replay_of or "-"),
        }
        lines = [f"{name:<12}{on_one_line(value, 10_000)}" for name, value in fields.items()]
        runs = [
            f"run {n:<8}{on_one_line(write_json(run))}" for n, run in enumerate(message.runs, 1)
        ]
        return Answer(text="\n".join(lines + runs), data=message)
