"""List the messages that wait, or those that run.

Messages are listed by due time, in Redis and in the outbox. Without a topic all topics are read.
`--due-before now` shows what is overdue. A filter by task or key prefix reads all waiting messages
of the topic, 500 at a time, until it has found enough.

  python manage.py delayq list orders
  python manage.py delayq list --task shop.tasks.close_order --due-before 2h --limit 200
  python manage.py delayq list orders --running
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from itertools import islice
from typing import Any

from ...client.topics import list_running
from ...core.exceptions import InvalidMessage
from ...core.present import distance, on_one_line
from ...core.times import from_ms
from ...operators.waiting_selection import waiting_messages
from ...store import get_store
from ...tasks.redaction import shown_message
from ..cli import Answer, Verb, whole
from ..targets import HEAD, RIGHT, add_filters, add_topic, selection_of, table_row


class Command(Verb):
    """Lists messages."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Which messages, and how many."""
        add_topic(parser, "(default: all topics)")
        add_filters(parser)
        parser.add_argument(
            "--running", action="store_true", help="messages that workers hold, at most 500 a topic"
        )
        parser.add_argument(
            "--limit",
            type=whole(1, 1_000_000),
            default=50,
            metavar="COUNT",
            help="at most this many messages (default: 50)",
        )

    def run(self, options: dict[str, Any]) -> Answer:
        """The messages as a table."""
        limit = options["limit"]
        if options["running"]:
            return _running(options)
        now = from_ms(get_store().clock_ms())
        found = list(islice(waiting_messages(selection_of(options)), limit + 1))
        shown, more = found[:limit], len(found) > limit
        text = "" if shown else "Nothing waits that fits."
        if more:
            text = f"There are more: --limit {limit * 10} shows more of them."
        return Answer(
            text=text,
            data={"messages": list(map(shown_message, shown)), "more": more},
            rows=[HEAD, *(table_row(message, now) for message in shown)] if shown else (),
            right=RIGHT,
        )


def _running(options: dict[str, Any]) -> Answer:
    selection, now = selection_of(options), from_ms(get_store().clock_ms())
    if selection.since or selection.until:
        raise InvalidMessage("--due-after and --due-before are for waiting messages.")
    found = [
        running
        for topic in selection.topics()
        for running in list_running(topic, limit=500)
        if selection.fits(running.message)
    ][: options["limit"]]
    head = ("since", "lease ends", "topic", "task", "key", "attempt", "id")
    rows = [
        (
            distance(running.since, now) if running.since else "-",
            distance(running.lease_until, now),
            running.message.topic,
            on_one_line(running.message.task),
            on_one_line(running.message.key or "-"),
            str(running.message.attempt),
            running.message.id,
        )
        for running in found
    ]
    return Answer(
        text="" if found else "Nothing runs that fits.",
        data={
            "messages": [
                replace(running, message=shown_message(running.message)) for running in found
            ],
            "more": False,
        },
        rows=[head, *rows] if found else (),
        right=(False, False, False, False, False, True, False),
    )
