"""How people see messages, times, amounts and texts: on the pages, in tables, in logs and in
errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from django.utils import formats, timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from .exceptions import UndecodableMessage
from .message import Found, Message, Record, State, decode_body
from .times import aware, duration_parts, from_ms, shown_instant


def view(topic: str, task: str, found: Found) -> Message:
    """A message for people, from what a partition holds. Raises UndecodableMessage."""
    record = Record.decode(found.record)
    body = decode_body(record.flags, record.body, found.id)
    try:
        enqueued_at, due_at = from_ms(record.enqueued_at_us / 1000), from_ms(found.due_at_ms)
        expires_at = from_ms(record.expires_at_ms) if record.expires_at_ms else None
    except (ValueError, OverflowError) as error:
        raise UndecodableMessage(f"The record's times are impossible: {error}.") from None
    return Message(
        id=found.id.hex(),
        topic=topic,
        task=task,
        state=found.state,
        key=body.key,
        args=body.args,
        kwargs=body.kwargs,
        headers=body.headers,
        priority=record.priority,
        attempt=found.attempts.attempt if found.attempts else 0,
        crashes=found.attempts.crashes if found.attempts else 0,
        runs=found.attempts.runs if found.attempts else (),
        enqueued_at=enqueued_at,
        due_at=due_at,
        expires_at=expires_at,
        replay_of=body.replay_of,
    )


def readable(topic: str, task: str, found: Found) -> Message:
    """view(), or the message without its contents when these cannot be decoded: the other messages
    of a page are shown all the same."""
    try:
        return view(topic, task, found)
    except UndecodableMessage:
        attempt = found.attempts.attempt if found.attempts else 0
        return bare(topic, found.id, task, found.state, found.due_at_ms, attempt)


def bare(
    topic: str, identity: bytes, task: str, state: State, due_at_ms: int, attempt: int = 0
) -> Message:
    """A message without its contents."""
    when = shown_instant(due_at_ms)
    return Message(
        id=identity.hex(),
        topic=topic,
        task=task,
        state=state,
        attempt=attempt,
        enqueued_at=when,
        due_at=when,
    )


# Times and amounts


def distance(when: datetime | None, now: datetime | None = None) -> str:
    """`in 2.4 s` or `3.1 min ago`."""
    if when is None:
        return "–"
    left = (aware(when) - aware(now or timezone.now())).total_seconds()
    words = {"time": seconds(abs(left), 2)}
    return _("in %(time)s") % words if left > 0 else _("%(time)s ago") % words


def next_due(when: datetime | None, now: datetime) -> str:
    """`in 2.4 s` or `overdue`."""
    return _("overdue") if when is not None and aware(when) <= aware(now) else distance(when, now)


def seconds(length: float | None, digits: int = 3) -> str:
    """A length of time given in seconds, in the language that is active: `1 h 13 min`, `1 Std. 13
    Min.`"""
    if length is None:
        return "–"
    sign = "-" if length < 0 else ""
    units = duration_units()
    return sign + " ".join(
        units[unit] % {"number": formats.number_format(number, use_l10n=True)}
        for number, unit in duration_parts(abs(length), digits)
    )


def duration_units() -> dict[str, str]:
    """What is written for each unit of duration_parts()."""
    return {
        "ms": _("%(number)s ms"),
        "s": _("%(number)s s"),
        "min": _("%(number)s min"),
        "h": _("%(number)s h"),
        "d": _("%(number)s d"),
    }


def amount(number: float | None) -> str:
    """A count or a rate, with separators."""
    if number is None:
        return "–"
    shown = round(number, 1) if isinstance(number, float) and number < 100 else round(number)
    return formats.number_format(shown, force_grouping=True)


# Texts


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def on_one_line(text: str, limit: int = 300) -> str:
    """Without characters that a terminal obeys or that end a line.

    The contents of a message and the words of an operator must not write log lines of their own.
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])


def table(rows: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    """The lines of a table, two blanks between its columns. `right`: which columns are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        yield "  ".join(cells).rstrip()


def visible(text: Any) -> str:
    """Text whose invisible characters are written out: control, bidirectional, zero-width."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in str(text))


@cache
def _words() -> frozenset[str]:
    # Not at import: gettext_noop() reads the settings, and workers of Spark have none.
    return frozenset({
        # States, and how a run ends.
        gettext_noop("delayed"), gettext_noop("ready"), gettext_noop("leased"),
        gettext_noop("acked"),
        gettext_noop("dead"), gettext_noop("cancelled"), gettext_noop("expired"),
        gettext_noop("retried"),
        gettext_noop("snoozed"), gettext_noop("put off"), gettext_noop("released"),
        gettext_noop("crashed"),
        # Kinds and statuses of bulk operations.
        gettext_noop("replay"), gettext_noop("discard"), gettext_noop("purge"),
        gettext_noop("shift"), gettext_noop("waiting"),
        gettext_noop("running"), gettext_noop("done"), gettext_noop("failed"),
        # What operators do.
        gettext_noop("prune"), gettext_noop("pause"), gettext_noop("resume"),
        gettext_noop("cancel"), gettext_noop("cancel running"),
        gettext_noop("run now"), gettext_noop("reschedule"), gettext_noop("edit"),
        gettext_noop("schedule"),
        gettext_noop("quiet"), gettext_noop("unquiet"), gettext_noop("cancel bulk"),
        gettext_noop("move"),
        gettext_noop("archive again"), gettext_noop("erase"), gettext_noop("audit repair"),
        gettext_noop("create token"), gettext_noop("revoke token"),
        gettext_noop("move store"), gettext_noop("partition archive"),
        gettext_noop("mark"), gettext_noop("download"),
        # Why a row is skipped.
        gettext_noop("not dead"), gettext_noop("already replayed"), gettext_noop("discarded"),
        gettext_noop("locked or deleted"), gettext_noop("newer one with this key"),
        gettext_noop("key live"),
        gettext_noop("unknown task"), gettext_noop("unknown topic"), gettext_noop("undecodable"),
        gettext_noop("redacted"), gettext_noop("undecryptable"),
        gettext_noop("arguments refused"),
        gettext_noop("started"), gettext_noop("ended"), gettext_noop("changed meanwhile"),
        gettext_noop("nothing to edit"), gettext_noop("has it already"),
        gettext_noop("not permitted"),
        gettext_noop("due already"), gettext_noop("more than ten years ahead"),
        gettext_noop("Redis has yet to hear of a change"),
        # What the services of a worker are called, and what they count.
        gettext_noop("archiver"), gettext_noop("relay"), gettext_noop("reconciler"),
        gettext_noop("ticker"), gettext_noop("bulk"), gettext_noop("retention"),
        gettext_noop("month maker"), gettext_noop("statistics"), gettext_noop("alerts"),
        gettext_noop("archived"), gettext_noop("lagging"), gettext_noop("sent"),
        gettext_noop("restored"), gettext_noop("written"), gettext_noop("deleted"),
        gettext_noop("made"), gettext_noop("computed"), gettext_noop("delivered"),
    })  # fmt: skip


def word(term: str) -> str:
    """A state, an outcome, an action or another of our words, in the reader's language."""
    return _(term) if term in _words() else str(term)


@cache
def _selecting() -> re.Pattern[str]:
    names = {
        gettext_noop("state"), gettext_noop("topic"), gettext_noop("task"), gettext_noop("error"),
        gettext_noop("key"), gettext_noop("key prefix"), gettext_noop("id"),
        gettext_noop("since"), gettext_noop("until"), gettext_noop("due since"),
        gettext_noop("due before"), gettext_noop("argument"), gettext_noop("to topic"),
        gettext_noop("worker"), gettext_noop("recurring task"),
    }  # fmt: skip
    whole = {
        gettext_noop("open dead letters"), gettext_noop("everything"),
        gettext_noop("with arguments"),
        gettext_noop("named row"), gettext_noop("named rows"),
        gettext_noop("named message"), gettext_noop("named messages"),
    }  # fmt: skip
    longest_first = "|".join(sorted(names, key=len, reverse=True))
    return re.compile(
        rf"(?:^|(?<=, )|(?<=\d ))(?:(?P<whole>{'|'.join(whole)})(?=,|$)"
        rf"|(?P<name>{longest_first}) (?P<state>(?<=state )\w+)?)"
    )


def selection_words(text: str) -> str:
    """What an order is about, as it is stored, in the reader's language. Names and values stay."""

    def translated(found: re.Match[str]) -> str:
        if found["whole"]:
            return str(_(found["whole"]))
        return f"{_(found['name'])} {word(found['state'] or '')}"

    return _selecting().sub(translated, text)
