"""When a recurring task is due: its rule, the ticks of the rule, and what happens to missed
ticks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings

from ..core.exceptions import InvalidMessage
from ..core.times import Duration, duration_ms, now_ms

Missed = Literal["skip", "once", "all"]

#: The header that carries the tick of a message.
TICK = "delayq-tick"
#: A tick is missed when so many milliseconds after it no message has been written for it.
MISSED_AFTER_MS = 60_000
DAY_MS = 86_400_000
#: How far back missed ticks are made up for, and at most how many of them.
LOOK_BACK_MS = 7 * DAY_MS
MOST_MISSED = 1_000

_LONGEST_S = 366 * 86_400
_FOREVER_MS = 4_000_000_000_000_000


class RecurrenceOptions(TypedDict, total=False):
    """What makes a task recurring: `every` or `cron`."""

    every: Duration
    """Run the task again and again: whole seconds, from 1 s to 366 days. The ticks are the
    multiples of this duration since 1970 in UTC, so they do not move when a process starts."""
    cron: str
    """Run the task at the times of a cron line of five fields, such as `"0 3 * * *"`."""
    time_zone: str | None
    """The zone of the cron line, such as `"Europe/Berlin"`. Default: Django's `TIME_ZONE`."""
    missed: Missed
    """What happens after an outage to ticks that are more than a minute late: `"once"` (the
    default) runs the newest of them, `"skip"` none, `"all"` each of them (the newest 1,000). Ticks
    that are more than seven days late never run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A sequence of instants: every so many seconds, or by a cron line in a time zone."""

    every_s: int = 0
    cron: str = ""
    time_zone: str = ""

    def __str__(self) -> str:
        return f"every {self.every_s} s" if self.every_s else f"{self.cron} {self.time_zone}"

    @classmethod
    def parse(cls, text: str) -> Rule:
        """The rule whose str() this is."""
        first, _, rest = text.partition(" ")
        if first == "every":
            return cls(every_s=int(rest.split()[0]))
        line, _, zone = text.rpartition(" ")
        return cls(cron=line, time_zone=zone)

    def ticks(self, after_ms: int, until_ms: int = _FOREVER_MS) -> Iterator[int]:
        """The ticks after one instant and up to another, the oldest first. All are milliseconds."""
        if self.every_s:
            step = self.every_s * 1000
            yield from range(after_ms - after_ms % step + step, until_ms + 1, step)
            return
        from cronsim import CronSim

        start = datetime.fromtimestamp(after_ms // 1000, tz=ZoneInfo(self.time_zone))
        for when in CronSim(self.cron, start):
            tick_ms = int(when.timestamp()) * 1000
            if tick_ms > until_ms:
                return
            # In the second of two equal hours the line of a fixed hour begins with the first one.
            if tick_ms > after_ms:
                yield tick_ms


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurrence:
    """The rule of a recurring task, and its policy for missed ticks."""

    rule: Rule
    missed: Missed = "once"

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Recurrence | None:
        """What @delayed_task was given; None for a task that is not recurring. Raises
        InvalidMessage."""
        every, cron = options.get("every"), options.get("cron")
        missed = options.get("missed", "once")
        if every is None and cron is None:
            if given := sorted(RecurrenceOptions.__annotations__.keys() & options.keys()):
                raise InvalidMessage(f"{', '.join(given)} needs a rule: give every= or cron=.")
            return None
        if every is not None and cron is not None:
            raise InvalidMessage("Give every or cron, not both. Two rules are two tasks.")
        if missed not in ("skip", "once", "all"):
            raise InvalidMessage(f'missed is {missed!r:.80}: use "skip", "once" or "all".')
        if every is None:
            rule = _cron_rule(cron, options.get("time_zone"))
        elif options.get("time_zone") is not None:
            raise InvalidMessage("time_zone is of a cron line: every= counts seconds in UTC.")
        else:
            every_ms = duration_ms(every, "every")
            if every_ms % 1000 or not 1000 <= every_ms <= _LONGEST_S * 1000:
                raise InvalidMessage(
                    f"every is {every!r:.80}: use whole seconds, from 1 s to 366 days."
                )
            rule = Rule(every_s=every_ms // 1000)
        return cls(rule=rule, missed=missed)

    def wanted(self, after_ms: int, now_ms: int, until_ms: int) -> list[int]:
        """The ticks after one instant and up to another that get a message: all that are on time,
        and of the missed ones those that the policy says."""
        ticks = list(self.rule.ticks(max(after_ms, now_ms - LOOK_BACK_MS), until_ms))
        if not ticks or ticks[0] >= now_ms - MISSED_AFTER_MS:
            return ticks
        if self.missed == "skip":
            return [tick for tick in ticks if tick >= now_ms - MISSED_AFTER_MS]
        late = [tick for tick in ticks if tick <= now_ms]
        most = MOST_MISSED if self.missed == "all" else 1
        return late[-most:] + ticks[len(late) :]


def _cron_rule(line: Any, zone: Any) -> Rule:
    if not isinstance(line, str) or len(line.split()) != 5 or len(line) > 200:
        raise InvalidMessage(
            f"cron is {line!r:.80}: write five fields (minute, hour, day of the month, month, day "
            'of the week) in at most 200 characters, such as "0 3 * * *".'
        )
    if zone is not None and not isinstance(zone, str):
        raise InvalidMessage(f"time_zone is {zone!r:.80}: write its name, as in Europe/Berlin.")
    from cronsim import CronSimError

    rule = Rule(cron=" ".join(line.split()), time_zone=zone or django_settings.TIME_ZONE)
    try:
        first = next(rule.ticks(now_ms()), None)
    except CronSimError as error:
        raise InvalidMessage(f"cron is {line!r:.80}: {str(error).lower()}.") from None
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise InvalidMessage(
            f"No time zone is named {rule.time_zone!r:.80}. Use a name such as Europe/Berlin."
        ) from None
    if first is None:
        raise InvalidMessage(f"cron is {line!r:.80}: no day fits it, so the task would never run.")
    return rule
