"""List recurring tasks, pause or resume one, or run one now.

`list` shows the rule of each task, its next ticks and its last run. `pause` needs a reason; ticks
during a pause never run. `run` runs the task once, now, and leaves its ticks as they are.

  python manage.py delayq recurring list
  python manage.py delayq recurring pause shop.tasks.send_report --reason "the mail server moves"
  python manage.py delayq recurring resume shop.tasks.send_report
  python manage.py delayq recurring run shop.tasks.send_report
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ...core.exceptions import InvalidMessage
from ...operators import recurring
from ...operators.recurring import RecurringStatus
from ..cli import Answer, ShellUser, Verb, add_record, in_time_zone

_HEAD = ("task", "rule", "missed", "next", "last", "state")


class Command(Verb):
    """Lists or changes recurring tasks."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What to do, with which task, and for the record."""
        parser.add_argument(
            "what", choices=("list", "pause", "resume", "run"), help="what to do (see above)"
        )
        parser.add_argument("task", nargs="?", help="the name of the task, as the list shows it")
        add_record(parser)

    def run(self, options: dict[str, Any]) -> Answer:
        """The list, or what was done."""
        what, name, reason = options["what"], options["task"], options["reason"]
        if what == "list":
            found = recurring.recurring_statuses()
            found = [status for status in found if name in (None, status.task)]
            return Answer(
                text="" if found else "no recurring task",
                data=[_plain(status) for status in found],
                rows=[_HEAD, *map(_row, found)] if found else (),
                right=[False] * len(_HEAD),
            )
        if not name:
            raise InvalidMessage(f"Name the task: delayq recurring {what} TASK.")
        user = ShellUser(options["by"])
        if what == "pause":
            recurring.pause_recurring(user, name, reason=reason)
            return Answer(text=f"paused {name}", data={"task": name, "paused": True})
        if what == "resume":
            recurring.resume_recurring(user, name, reason=reason)
            return Answer(text=f"resumed {name}", data={"task": name, "paused": False})
        handle = recurring.run_recurring_now(user, name, reason=reason)
        return Answer(
            text=f"enqueued {name} as message {handle.id}", data={"task": name, "id": handle.id}
        )


def _row(status: RecurringStatus) -> tuple[str, ...]:
    last = status.last
    if status.paused:
        then = f"paused by {status.paused.paused_by}: {status.paused.pause_reason}"
    elif status.silent:
        then = "nobody writes its ticks"
    else:
        then = in_time_zone(status.next_ticks[0]) if status.next_ticks else "-"
    return (
        status.task,
        status.rule,
        status.missed or "not declared here",
        then,
        in_time_zone(last.tick) if last else "-",
        (last.state or "-") if last else "-",
    )


def _plain(status: RecurringStatus) -> dict[str, Any]:
    """The value as JSON can hold it. Instants are in ISO 8601."""
    row = status.paused
    pause = row and {"at": row.paused_at, "by": row.paused_by, "reason": row.pause_reason}
    last = status.last and {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in asdict(status.last).items()
    }
    ticks = [tick.isoformat() for tick in status.next_ticks]
    shown = {name: getattr(status, name) for name in ("task", "topic", "rule", "missed", "silent")}
    return {**shown, "next_ticks": ticks, "last": last, "paused": pause}
