"""Takes a person's data out of the rows of the archive: which messages are the person's, and what
is left of a row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.db import transaction
from django.db.models import Min
from django.utils import timezone
from django.utils.crypto import salted_hmac

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage, UndecodableMessage
from ..core.message import Record, check_key, decode_body
from ..core.times import epoch_us, utc
from ..models import ArchivedMessage, Final, OperatorAction, TaskDay
from ..store.queries import Life
from .argument_match import ArgumentMatch
from .prune import still_needed
from .selection import Rows, newest_id

#: In place of arguments. The mark keeps a replay from taking what is left for the arguments.
ERASED = '{"args":[],"kwargs":{},"redaction":"erased"}'
#: The columns of a redacted row that had contents.
REDACTED: Mapping[str, str] = {
    "key": "",
    "body": ERASED,
    "headers": "",
    "history": "",
    "error_message": "",
    "traceback": "",
    "result": "",
}
#: Ids that one query looks through, and rows that one transaction changes.
SPAN, BATCH = 20_000, 500


@dataclass(frozen=True, kw_only=True)
class Person:
    """Which messages are about a person: those with an argument, or a key, that names the person.
    Each part that is given narrows it down."""

    argument: str = ""
    """Name of the argument; `a.b` leads into objects and lists, as in the archive's search."""
    value: Any = None
    """What the argument is: JSON, or of a type that an annotation may have, such as a UUID."""
    as_typed: bool = False
    """Whether `value` is text that somebody typed, JSON or a plain word: 42 is then the number and
    the text."""
    key_prefix: str = ""
    """The first characters of the key. `customer:4` is also the beginning of `customer:42`."""
    task: str = ""
    topic: str = ""

    def __post_init__(self) -> None:
        if not (self.argument or self.key_prefix):
            raise InvalidMessage("Say whose data: by an argument and its value, or a key prefix.")
        if self.key_prefix:
            check_key(self.key_prefix)
        try:
            _ = self.match
        except (TypeError, ValueError, NotImplementedError) as error:
            raise InvalidMessage(f"The value of {self.argument} is no JSON: {error}.") from None

    @cached_property
    def match(self) -> ArgumentMatch | None:
        """Compares the argument; None when there is none."""
        if not self.argument:
            return None
        if self.as_typed:
            return ArgumentMatch.read(self.argument, self.value)
        return ArgumentMatch(self.argument, msgspec.json.decode(msgspec.json.encode(self.value)))

    def owns(
        self, topic: str, task: str, key: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """Whether a message is the person's."""
        return self._may_own(topic, task, key) and (
            self.match is None or self.match.is_in(task, args, kwargs)
        )

    def owns_row(self, topic: str, task: str, key: str, message_id: UUID, body: str) -> bool:
        """Whether a row of the archive is the person's."""
        return self._may_own(topic, task, key) and (
            self.match is None or self.match.is_in_row(task, message_id, body)
        )

    def owns_record(self, topic: str, task: str, identity: bytes, raw: bytes) -> bool | None:
        """Whether a record of Redis or the outbox is the person's; None when it cannot be read."""
        try:
            record = Record.decode(raw)
            body = decode_body(record.flags, record.body, identity)
        except UndecodableMessage:
            return None
        return self.owns(topic, task, body.key or "", body.args, body.kwargs)

    def _may_own(self, topic: str, task: str, key: str) -> bool:
        return (
            self.topic in ("", topic)
            and self.task in ("", task)
            and key.startswith(self.key_prefix)
        )

    def rows(self) -> Rows:
        """The rows of the archive that may be the person's."""
        rows: Rows = ArchivedMessage.objects.all()
        given = {"topic": self.topic, "task": self.task, "key__startswith": self.key_prefix}
        rows = rows.filter(**{name: value for name, value in given.items() if value})
        return rows if self.match is None else self.match.narrowed(rows)

    def in_words(self) -> str:
        """One line for the record, without the value and the key: only their keyed hash."""
        secret = json.dumps([self.argument, msgspec.to_builtins(self.value), self.key_prefix])
        mark = salted_hmac("django_delayq.erase", secret, algorithm="sha256").hexdigest()[:16]
        words = [f"argument {self.argument}"] if self.argument else []
        words += ["key prefix"] if self.key_prefix else []
        words += [f"task {self.task}"] if self.task else []
        words += [f"topic {self.topic}"] if self.topic else []
        return ", ".join([*words, f"value's hash {mark}"])


class OwnedRow(NamedTuple):
    """A row of the archive that is the person's."""

    pk: int
    message_id: UUID
    topic: str
    task: str
    key: str
    finished_at: datetime
    reason: str
    """Empty unless the task has given it, Reject("..."), or who has cancelled the message."""


def owned_rows(
    person: Person, after: int = 0, lives: Sequence[Life] = ()
) -> Iterator[Sequence[OwnedRow]]:
    """The person's rows with ids above this one, in the order of their ids, 500 at most at a time;
    then rows of these messages, whatever they hold. Redacted rows are left out."""
    columns = (
        "pk", "message_id", "topic", "task", "key", "finished_at", "reason", "state", "worker",
        "body", "enqueued_at",
    )  # fmt: skip
    every: Rows = ArchivedMessage.objects.exclude(body=ERASED)
    rows, last = person.rows().exclude(body=ERASED), newest_id()
    while after < last:
        end = after + SPAN
        while page := list(
            rows.filter(pk__gt=after, pk__lte=end)
            .order_by("pk")
            .values_list(*columns, named=True)[:BATCH]
        ):
            after = page[-1].pk
            if found := [
                _owned(row)
                for row in page
                if person.owns_row(row.topic, row.task, row.key, row.message_id, row.body)
            ]:
                yield found
        # Over a gap between ids in one step.
        beyond = ArchivedMessage.objects.filter(pk__gt=end)
        following = beyond.aggregate(first=Min("pk"))["first"]
        after = last if following is None else following - 1
    for chunk in chunked(lives, BATCH):
        named = set(chunk)
        there = every.filter(message_id__in=[UUID(bytes=life.id) for life in chunk])
        if found := [
            _owned(row)
            for row in there.values_list(*columns, named=True)
            if Life(row.message_id.bytes, epoch_us(row.enqueued_at)) in named
        ]:
            yield found


def _owned(row: Any) -> OwnedRow:
    given = row.reason if has_own_reason(row.state, row.worker) else ""
    return OwnedRow(row.pk, row.message_id, row.topic, row.task, row.key, row.finished_at, given)


def has_own_reason(state: str, worker: str) -> bool:
    """Whether the reason of a row may be a text of its task, or of who has cancelled it."""
    return state == Final.CANCELLED or (state == Final.DEAD and bool(worker))


def redacted(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row as they are without the person's data."""
    changed = {**row, **REDACTED}
    if has_own_reason(row["state"], row["worker"]):
        changed["reason"] = ""
    return changed


def erase_rows(rows: Sequence[OwnedRow], action: OperatorAction, *, delete: bool) -> set[int]:
    """Redact these rows, or delete them, and count them in the record, in one transaction. Returns
    the ids of those that were changed.

    Rows that keep an exactly_once message from running twice are not deleted yet.
    """
    alias = get_settings().database
    table: Rows = ArchivedMessage.objects.filter(pk__in=[row.pk for row in rows])
    needed = still_needed(table) if delete else set()
    going = [row for row in rows if row.pk not in needed]
    table = ArchivedMessage.objects.filter(pk__in=[row.pk for row in going])
    with transaction.atomic(using=alias):
        if delete:
            table.delete()
        else:
            table.filter(state=Final.DEAD, replayed_at=None, discarded_at=None).update(
                discarded_at=timezone.now()
            )
            table.filter(state=Final.DEAD).exclude(worker="").update(reason="")
            table.filter(state=Final.CANCELLED).update(reason="")
            table.update(**REDACTED)
        _erase_from_figures(going)
        actions = OperatorAction.objects.exclude(pk=action.pk)
        for which in (
            {"archived_id__in": [row.pk for row in going]},
            {"message_id__in": [row.message_id for row in going]},
        ):
            actions.filter(**which).update(reason="", selection="")
        action.add(len(going))
    return {row.pk for row in going}


def _erase_from_figures(rows: Sequence[OwnedRow]) -> None:
    """The figures of a day name the reasons of its dead letters."""
    reasons: dict[tuple[Any, str, str], set[str]] = {}
    for row in rows:
        if row.reason:
            place = (utc(row.finished_at).date(), row.topic, row.task)
            reasons.setdefault(place, set()).add(row.reason)
    for (day, topic, task), texts in reasons.items():
        for figures in TaskDay.objects.filter(day=day, topic=topic, task=task):
            errors: dict[str, int] = json.loads(figures.errors)
            kept = {text: count for text, count in errors.items() if text not in texts}
            if gone := sum(errors.values()) - sum(kept.values()):
                kept[""] = kept.get("", 0) + gone
                TaskDay.objects.filter(pk=figures.pk).update(
                    errors=json.dumps(kept), computed_at=timezone.now()
                )
