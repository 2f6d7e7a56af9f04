"""Sends dead letters again, or marks those that need it not: in batches that may be interrupted, and each only once."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from itertools import islice
from typing import Any
from uuid import UUID

import msgspec
from django.core.exceptions import EmptyResultSet, FieldError, ValidationError
from django.db import connections, transaction
from django.db.models import Case, F, Max, QuerySet, Value, When
from django.db.models.functions import Length
from django.utils import timezone

from . import outbox, tasks
from .conf import get_settings
from .exceptions import InvalidMessage
from .identity import key_id, new_id
from .message import Priority
from .models import ArchivedMessage, Final, OperatorAction, OutboxMessage, OutboxStatus
from .outgoing import Item, Template
from .store import get_store
from .store.keys import Partition
from .store.redis import BATCH
from .tasks import Call, DelayedTask
from .times import Duration, duration_ms

#: Rows of a selection that are looked at in one query: only their ids and what tells whether they are to be changed.
PAGE = 10_000
#: Characters of arguments in memory at a time, and in one INSERT: MariaDB takes 16 MiB by default.
CHUNK = 2_000_000

Rows = QuerySet[ArchivedMessage]
Edit = Callable[[ArchivedMessage], tuple[Sequence[Any], Mapping[str, Any]] | None]

_STANDING = ("pk", "state", "replayed_at", "discarded_at")
_CONTENT = ("topic", "task", "key", "body", "headers", "priority", "ttr_ms", "max_attempts")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What replay() or discard() has done so far."""

    action: OperatorAction
    """The record of it. Its finished_at is null until the end."""
    count: int
    """Messages that are replayed, or discarded."""
    skipped: Counter[str]
    """How many rows of the selection were left as they are, by the reason in words."""


Progress = Callable[[Replayed], object]


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What replay() or discard() would take up."""

    count: int
    first: Sequence[ArchivedMessage]
    skipped: Counter[str]


class _Arguments(msgspec.Struct):
    """The body of a row."""

    args: list[Any]
    kwargs: dict[str, Any]
    redaction: str = ""


_decode_arguments = msgspec.json.Decoder(_Arguments).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


# Public calls


def replay(  # noqa: PLR0913 - keyword-only, and each of them is what an operator may say
    selection: Rows | None = None,
    *,
    delay: Duration = 0,
    rate: float | None = None,
    edit: Edit | None = None,
    force: bool = False,
    limit: int | None = None,
    by: str = "",
    reason: str = "",
    progress: Progress | None = None,
    **filters: Any,
) -> Replayed:
    """Send dead letters again, each as a new durable message that names its origin. The relay brings them to Redis.

    `selection` is a queryset of ArchivedMessage; `filters` are field lookups, on their own or within it (the row's own
    reason is `reason__exact`). The oldest come first, in transactions of 500 rows: to interrupt is safe, and to run
    again goes on where it ended. A row that was replayed or discarded is skipped, unless `force`. Rows that are not
    dead, whose task or topic is not declared, whose body was redacted or cannot be read, and whose arguments the task
    no longer takes are skipped too. So is a row whose key is live, and one with a newer row of the same key in the
    selection: of those only the newest counts, whatever became of it short of discarded.

    `delay`: seconds or timedelta before they are due, 0 to ten years. `rate`: messages per second, more than 0; spreads
    the due times evenly from then on. `limit`: most messages to replay. `edit(row)` returns other `(args, kwargs)`, or
    None. `by` and `reason` are for the OperatorAction. `progress(replayed)` is called first and after each transaction.

    Raises InvalidMessage: for `edit`ed arguments that are refused nothing of their transaction is replayed. Raises
    StoreUnavailable when Redis cannot be asked for keys. What was committed before stays, and `action.count` tells it.
    """
    walk = _Walk(_selected(selection, filters), force, limit)
    sender = _Sender(walk, duration_ms(delay), _checked_rate(rate), edit)
    walk.begin("replay", by, reason, progress)
    return walk.run(sender.send)


def discard(  # noqa: PLR0913 - keyword-only
    selection: Rows | None = None,
    *,
    reason: str,
    by: str = "",
    limit: int | None = None,
    progress: Progress | None = None,
    **filters: Any,
) -> Replayed:
    """Mark dead letters as needing no replay: they count as dealt with, and prune() may delete them.

    Selection, batches, `limit`, `by` and `progress` are those of replay(). A `reason` is required. Raises
    InvalidMessage.
    """
    if not reason.strip():
        raise InvalidMessage("Say why these messages need no replay: discard(..., reason=...).")
    walk = _Walk(_selected(selection, filters), False, limit)
    walk.begin("discard", by, reason, progress)

    def mark(rows: Sequence[Any]) -> int:
        marked: int = walk.table.filter(pk__in=[row.pk for row in rows]).update(discarded_at=timezone.now())
        return marked

    return walk.run(mark)


def preview(
    selection: Rows | None = None, *, force: bool = False, limit: int | None = None, first: int = 10, **filters: Any
) -> Preview:
    """What replay() or discard() would take up, without changing anything. Tasks, arguments and keys are not checked.

    `first`: how many rows to return. Raises InvalidMessage.
    """
    walk = _Walk(_selected(selection, filters), force, limit)
    candidates = islice(walk.candidates(), limit)
    pks = list(islice(candidates, first))
    count = len(pks) + sum(1 for _ in candidates)
    return Preview(count=count, first=list(walk.table.filter(pk__in=pks).order_by("pk")), skipped=walk.skipped)


# What is asked for


def _selected(selection: Rows | None, filters: Mapping[str, Any]) -> Rows:
    """The rows in the order of their ids; lookups alone are about dead ones. Raises InvalidMessage."""
    if selection is None and not filters:
        raise InvalidMessage("Say which: a queryset or field lookups. For everything: ArchivedMessage.objects.all().")
    rows: Rows = ArchivedMessage.objects.filter(state=Final.DEAD) if selection is None else selection
    if not isinstance(rows, QuerySet) or rows.model is not ArchivedMessage:
        raise InvalidMessage(f"The selection is a queryset of ArchivedMessage, not {selection!r:.80}.")
    if rows.query.is_sliced or rows.query.combinator:
        raise InvalidMessage("A sliced or combined queryset cannot be walked in batches: use filter() and limit=.")
    try:
        rows = rows.using(get_settings().database).filter(**filters)
    except (FieldError, ValidationError, TypeError, ValueError) as error:
        raise InvalidMessage(f"These lookups do not fit ArchivedMessage: {error}") from None
    rows.query.standard_ordering = True  # whatever reverse() has said
    return rows.order_by("pk")


def _checked_rate(rate: float | None) -> float | None:
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf):
        raise InvalidMessage(f"rate is a number of messages per second above 0, not {rate!r}.")
    return rate


def _in_words(rows: Rows) -> str:
    """The condition, much as the database reads it."""
    try:
        sql, values = rows.order_by().values("pk").query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return "nothing"
    table = connections[rows.db].ops.quote_name(ArchivedMessage._meta.db_table)
    return (sql % tuple(values)).replace(f"{table}.", "").partition(" WHERE ")[2] or "everything"


# Walking


class _Walk:
    """Goes through a selection by its ids, changes it batch by batch, and counts."""

    action: OperatorAction

    def __init__(self, rows: Rows, force: bool, limit: int | None) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise InvalidMessage(f"limit is a whole number from 1 on, not {limit!r}.")
        self.rows, self.force, self.limit, self.alias = rows, force, limit, rows.db
        self.count = 0
        self.skipped: Counter[str] = Counter()
        self.table: Rows = ArchivedMessage.objects.using(self.alias)
        newest = self.table.order_by("-pk").values_list("pk", flat=True).first()
        self.last: int = newest or 0
        """What dies after the beginning is not of the selection: else a task that always fails had us here for ever."""

    def begin(self, name: str, by: str, reason: str, progress: Progress | None) -> None:
        """Record that somebody does something."""
        said = [_in_words(self.rows), "force" if self.force else "", f"limit {self.limit:,}" if self.limit else ""]
        words = ", ".join(filter(None, said))[:2_000]
        self.action = OperatorAction(action=name, operator=by[:150], reason=reason, selection=words)
        self.action.save(using=self.alias)
        self._progress = progress
        self._tell()

    def run(self, change: Callable[[Sequence[Any]], int]) -> Replayed:
        """Change every batch in a transaction of its own, which also says so in the action."""
        actions = OperatorAction.objects.using(self.alias).filter(pk=self.action.pk)
        for pks in self._batches():
            with transaction.atomic(using=self.alias):
                # A write first: where there are no row locks (SQLite), who reads first may not write afterwards.
                actions.update(count=F("count"))
                count = change(self._lock(pks))
                actions.update(count=F("count") + count)
            self.count = self.action.count = self.count + count
            self._tell()
        self.action.finished_at = timezone.now()
        self.action.save(using=self.alias, update_fields=["finished_at"])
        return self._so_far()

    def candidates(self) -> Iterator[int]:
        """The ids of the rows to change."""
        after, more = 0, True
        while more:
            page = self.rows.filter(pk__gt=after, pk__lte=self.last).values_list(*_STANDING)[:PAGE]
            found = list(page)
            for pk, *standing in found:
                if not self.skip(self._standing(*standing)):
                    yield pk
            more = len(found) == PAGE
            after = found[-1][0] if found else after

    def skip(self, why: str, count: int = 1) -> bool:
        """Count rows that are left as they are; an empty reason is none."""
        if why and count:
            self.skipped[why] += count
        return bool(why)

    def _batches(self) -> Iterator[list[int]]:
        candidates = self.candidates()
        while pks := list(islice(candidates, self._room())):
            yield pks

    def _room(self) -> int:
        return BATCH if self.limit is None else min(BATCH, self.limit - self.count)

    def _lock(self, pks: Sequence[int]) -> list[Any]:
        """The rows that are still to be changed, without their bodies. What others change meanwhile is left to them."""
        skip_locked = connections[self.alias].features.has_select_for_update_skip_locked
        rows = self.table.filter(pk__in=pks).select_for_update(skip_locked=skip_locked).order_by("pk")
        rows = rows.annotate(size=Length("body") + Length("headers"))
        names = (*_STANDING, "message_id", "topic", "task", "key", "size")
        found = list(rows.values_list(*names, named=True))
        self.skip("locked or deleted", len(pks) - len(found))
        return [row for row in found if not self.skip(self._standing(row.state, row.replayed_at, row.discarded_at))]

    def _standing(self, state: str, replayed_at: object, discarded_at: object) -> str:
        if state != Final.DEAD:
            return "not dead"
        if self.force:
            return ""
        return "already replayed" if replayed_at else "discarded" if discarded_at else ""

    def _tell(self) -> None:
        if self._progress:
            self._progress(self._so_far())

    def _so_far(self) -> Replayed:
        return Replayed(action=self.action, count=self.count, skipped=self.skipped.copy())


# Sending


class _Sender:
    """Makes outbox rows of locked archive rows."""

    def __init__(self, walk: _Walk, delay_ms: int, rate: float | None, edit: Edit | None) -> None:
        self._walk = walk
        self._delay_ms, self._rate, self._edit = delay_ms, rate, edit
        self._settings = get_settings()
        self._began_ms = -(-get_store().now_us() // 1000)
        self._table = OutboxMessage.objects.using(walk.alias)

    def send(self, locked: Sequence[Any]) -> int:
        """Insert the messages and mark their origins. Returns how many."""
        known = tasks.known_topics()
        rows = [row for row in locked if not self._walk.skip(_undeclared(row, known))]
        rows = self._without_keys_in_use(rows)
        count = 0
        for pks in _chunks(rows):
            content = self._walk.table.filter(pk__in=pks).order_by("pk")
            if self._edit is None:
                content = content.only(*_CONTENT)
            items: dict[int, Item] = {}
            for row in content:
                if item := self._item(row, self._walk.count + count + len(items)):
                    items[row.pk] = item
            count += self._mark(self._insert(items))
        return count

    def _without_keys_in_use(self, rows: Sequence[Any]) -> Sequence[Any]:
        keyed = [row for row in rows if row.key]
        if not keyed:
            return rows
        newest, live = self._newest({row.message_id for row in keyed}), _live(keyed)

        def why(row: Any) -> str:
            if not row.key:
                return ""
            if row.pk < newest.get(row.message_id, 0):
                return "newer one with this key"
            return "key live" if row.message_id.bytes in live else ""

        return [row for row in rows if not self._walk.skip(why(row))]

    def _newest(self, ids: set[UUID]) -> dict[UUID, int]:
        """The newest dead letter of the selection with each id."""
        rows = self._walk.rows.filter(message_id__in=ids, state=Final.DEAD, pk__lte=self._walk.last)
        if not self._walk.force:
            rows = rows.filter(discarded_at=None)
        return dict(rows.order_by().values("message_id").annotate(Max("pk")).values_list("message_id", "pk__max"))

    def _item(self, row: ArchivedMessage, number: int) -> Item | None:
        """The message that replays this row, or None: counted as skipped."""
        try:
            found = _decode_arguments(row.body)
            headers = _decode_headers(row.headers) if row.headers else {}
        except (msgspec.MsgspecError, UnicodeError):
            self._walk.skip("undecodable")
            return None
        edited = self._edit(row) if self._edit else None
        if edited is None and self._walk.skip("redacted" if found.redaction else ""):
            return None
        try:
            args, kwargs = _pair(edited) if edited is not None else (found.args, found.kwargs)
            return self._template(row, headers, number).item(Call(tasks.by_name[row.task], args, kwargs), new_id())
        except InvalidMessage as error:
            if edited is not None:
                raise InvalidMessage(f"Archived message {row.pk}: the edited arguments are refused. {error}") from error
            self._walk.skip("arguments refused")
            return None

    def _template(self, row: ArchivedMessage, headers: Mapping[str, str], number: int) -> Template:
        task = tasks.by_name[row.task]
        options = with_changes(
            task.options,
            topic=row.topic,
            when=self._when(number),
            ttr_ms=row.ttr_ms,
            max_attempts=task.options.max_attempts if row.max_attempts is None else row.max_attempts,
            priority=Priority(row.priority),
            expires="",
            on_duplicate="keep",  # one that comes in between is newer
            key=row.key or None,
            headers=headers,
            durable=True,
            replay_of=row.pk,
        )
        return Template(DelayedTask(task.definition, options), self._settings)

    def _when(self, number: int) -> str:
        if self._rate is None:
            return f"+{self._delay_ms}"
        return str(self._began_ms + self._delay_ms + math.ceil(number * 1000 / self._rate))

    def _insert(self, items: Mapping[int, Item]) -> dict[int, UUID]:
        """Returns the ids of the messages by those of their origins."""
        now_us = get_store().now_us()
        rows = {pk: outbox._row(item, now_us, OutboxStatus.WAITING) for pk, item in items.items()}
        for row in rows.values():  # behind what waits already, so that a million of them hold up nobody
            row.relay_at_ms = max(row.relay_at_ms, now_us // 1000)
        self._table.bulk_create([row for row in rows.values() if not row.key])
        refused = self._insert_keyed([row for row in rows.values() if row.key], now_us)
        self._walk.skip("key live", len(refused))
        return {pk: row.message_id for pk, row in rows.items() if row.message_id not in refused}

    def _insert_keyed(self, rows: Sequence[OutboxMessage], now_us: int) -> set[UUID]:
        """Insert what may be there, also since a moment. Returns the ids of those that are."""
        if not rows:
            return set()
        # In one order, so that two replays of the same keys wait for each other instead of deadlocking.
        self._table.bulk_create(sorted(rows, key=lambda row: row.message_id), ignore_conflicts=True)
        ids = {row.message_id for row in rows}
        ours = self._table.filter(message_id__in=ids, enqueued_at_us=now_us).values_list("message_id", flat=True)
        return ids - set(ours)

    def _mark(self, replayed: Mapping[int, UUID]) -> int:
        if replayed:
            by = Case(*[When(pk=pk, then=Value(message_id)) for pk, message_id in replayed.items()])
            self._walk.table.filter(pk__in=replayed).update(replayed_by=by, replayed_at=timezone.now())
        return len(replayed)


def _undeclared(row: Any, topics: set[str]) -> str:
    """Why this row cannot be a message, without a look at its body."""
    if row.task not in tasks.by_name:
        return "unknown task"
    if row.topic not in topics:
        return "unknown topic"
    # The archive writes \0 otherwise: then the row does not have the key.
    return "undecodable" if row.key and key_id(row.topic, row.key) != row.message_id.bytes else ""


def _live(rows: Sequence[Any]) -> set[bytes]:
    """Which of the ids are live in Redis."""
    store = get_store()
    asked: dict[Partition, list[bytes]] = defaultdict(list)
    for topic, identity in {(row.topic, row.message_id.bytes) for row in rows}:
        for partition in store.partitions.candidates(topic, identity):
            asked[partition].append(identity)
    return {found.id for partition, ids in asked.items() for found in store.find(partition, ids) if found}


def _chunks(rows: Sequence[Any]) -> Iterator[list[int]]:
    """Ids of rows whose bodies fit into memory together."""
    pks: list[int] = []
    size = 0
    for row in rows:
        if pks and size + row.size > CHUNK:
            yield pks
            pks, size = [], 0
        pks.append(row.pk)
        size += row.size
    if pks:
        yield pks


def _pair(edited: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(edited, tuple) and len(edited) == 2:
        args, kwargs = edited
        if isinstance(args, list | tuple) and isinstance(kwargs, Mapping):
            return args, kwargs
    raise InvalidMessage(f"edit returns (args, kwargs) or None, not {edited!r:.80}.")
