"""Find a message by its id or key, wherever it is: live or in the archive.

A text of 32 hexadecimal digits, or a UUID, is an id; any other text is a key. A key is looked up in
each topic, unless --topic names one. The exit code is 1 when nothing is found.

  python manage.py delayq find order:7
  python manage.py delayq find 0192f0c1a2b3740d8e5f60718293a4b5 --json
"""

from __future__ import annotations

from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

from ...core.exceptions import InvalidMessage, MessageNotFound
from ...core.message import parse_id
from ...core.present import on_one_line
from ...operators import message_search
from ..cli import Answer, Verb, in_time_zone


class Command(Verb):
    """Finds a message."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to search, and where."""
        parser.add_argument("what", metavar="ID_OR_KEY", help="the id or the key of the message")
        parser.add_argument("--topic", default="", help="only in this topic")

    def run(self, options: dict[str, Any]) -> Answer:
        """Where it is."""
        what, topic = options["what"], options["topic"]
        found = []
        with suppress(InvalidMessage):
            parse_id(what)
            hit = message_search.by_id(what, topic)
            found = [hit] if hit and topic in ("", hit.topic) else []
        found = found or message_search.by_key(what, topic)
        if not found:
            where = f"topic {topic!r}" if topic else "any topic"
            raise MessageNotFound(
                f"No message has the id or key {what!r} in {where}, neither live nor in the "
                "archive."
            )
        head = ("state", "due or ended", "topic", "task", "key", "archive row", "id")
        rows = [
            (
                hit.state,
                in_time_zone(hit.at),
                hit.topic,
                on_one_line(hit.task),
                on_one_line(hit.key or "-"),
                str(hit.row or "-"),
                hit.message_id,
            )
            for hit in found
        ]
        right = (False, False, False, False, False, True, False)
        return Answer(data=found, rows=[head, *rows], right=right)
