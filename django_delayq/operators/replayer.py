"""Makes new messages of dead letters: rows of the outbox, in the transaction that marks their
origins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_changes
from functools import lru_cache
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
from django.db import connections
from django.db.models import Max
from django.db.models.expressions import RawSQL
from django.utils import timezone

from ..archive.row_arguments import UNDECRYPTABLE, read_arguments
from ..archive.selection import Rows
from ..core.chunks import chunked_by_weight
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..core.message import Priority, key_id, new_id
from ..core.times import When
from ..models import ArchivedMessage, Final, OutboxMessage, OutboxStatus
from ..outbox import outbox
from ..store import get_store
from ..tasks import registry
from ..tasks.argument_edit import NOTHING_TO_EDIT, ArgumentEdit
from ..tasks.builder import Item, Template
from ..tasks.foreign import task_of_row
from ..tasks.redaction import refuse_mark
from ..tasks.task import Call, Task
from .walk import Walk

#: Characters of arguments in memory at a time, and in one INSERT: MariaDB takes 16 MiB by default.
CHUNK = 2_000_000

Edit = Callable[[ArchivedMessage], tuple[Sequence[Any], Mapping[str, Any]] | None]

_CONTENT = (
    "message_id",
    "topic",
    "task",
    "key",
    "body",
    "headers",
    "priority",
    "ttr_ms",
    "max_attempts",
)


_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Replayer:
    """Makes outbox rows of locked archive rows."""

    def __init__(
        self, walk: Walk, delay_ms: int, rate: float | None, edit: Edit | ArgumentEdit | None
    ) -> None:
        self._walk = walk
        self._delay_ms, self._rate, self._edit = delay_ms, rate, edit
        self._settings = get_settings()
        self.began_ms = -(-get_store().now_us() // 1000)
        """The instant (ms) from which the rate counts."""
        self.sent_before = 0
        """Messages that were sent since then, before this walk."""
        self._sent = 0
        self._table = OutboxMessage.objects.all()

    def send(self, locked: Sequence[Any]) -> int:
        """Insert the messages and mark their origins. Returns how many."""
        count = 0
        for items in self._chunks(locked):
            sent = mark_replayed(self._walk.table, self._insert(items))
            self._sent += sent
            count += sent
        return count

    def foresee(self, locked: Sequence[Any]) -> int:
        """How many send() would insert: the same checks, and nothing is changed."""
        count = 0
        for items in self._chunks(locked):
            ids = {pk: item.message.id for pk, item in items.items() if item.template.key}
            there = self._table.filter(message_id__in=[UUID(bytes=one) for one in ids.values()])
            live = {one.bytes for one in there.values_list("message_id", flat=True)}
            for pk, identity in ids.items():
                if identity in live:
                    self._walk.skip("key live", pk)
                    del items[pk]
            self._sent += len(items)
            count += len(items)
        return count

    def _chunks(self, locked: Sequence[Any]) -> Iterator[dict[int, Item]]:
        """The messages for these rows, by the ids of the rows."""
        declared = lru_cache(registry.is_declared)
        rows = [row for row in locked if not self._walk.skip(_undeclared(row, declared), row.pk)]
        meant = self._without_keys_in_use(rows)
        for chunk in chunked_by_weight(meant, lambda row: int(row.size), CHUNK):
            content = self._walk.table.filter(pk__in=[row.pk for row in chunk]).order_by("pk")
            if self._edit is None or isinstance(self._edit, ArgumentEdit):
                content = content.only(*_CONTENT)
            items: dict[int, Item] = {}
            for row in content:
                if item := self._item(row, self._sent + len(items)):
                    items[row.pk] = item
            yield items

    def _without_keys_in_use(self, rows: Sequence[Any]) -> Sequence[Any]:
        """Skip rows whose key is live, and all but the newest dead letter of each key."""
        keyed = [row for row in rows if row.key]
        if not keyed:
            return rows
        ids = {row.message_id for row in keyed}
        dead = self._walk.rows.filter(message_id__in=ids, state=Final.DEAD, pk__lte=self._walk.last)
        if not self._walk.force:
            dead = dead.filter(discarded_at=None)
        by_id = dead.order_by().values("message_id").annotate(Max("pk"))
        newest = dict(by_id.values_list("message_id", "pk__max"))
        places = [(row.topic, row.message_id.bytes) for row in keyed]
        live = {found.id for _, found in get_store().find_many(places)}

        def why(row: Any) -> str:
            if not row.key:
                return ""
            if row.pk < newest.get(row.message_id, 0):
                return "newer one with this key"
            return "key live" if row.message_id.bytes in live else ""

        return [row for row in rows if not self._walk.skip(why(row), row.pk)]

    def _item(self, row: ArchivedMessage, number: int) -> Item | None:
        """The message that replays this row, or None: counted as skipped."""
        try:
            found = read_arguments(row.message_id, row.body)
            headers = _decode_headers(row.headers) if row.headers else {}
        except (msgspec.MsgspecError, UnicodeError):
            self._walk.skip("undecodable", row.pk)
            return None
        edited = self._edit(row) if callable(self._edit) else None
        if edited is None and self._walk.skip(_why_hidden(found.redaction), row.pk):
            return None
        try:
            if isinstance(self._edit, ArgumentEdit):
                edited = self._edit.edited(row.topic, found.arguments)
                if edited is None:
                    self._walk.skip(NOTHING_TO_EDIT, row.pk)
                    return None
            if edited is not None:
                refuse_mark(*_pair(edited))
            args, kwargs = _pair(edited) if edited is not None else (found.args, found.kwargs)
            template = self._template(row, headers, number)
            return template.item(Call(template.task, args, kwargs), new_id())
        except InvalidMessage as error:
            if callable(self._edit) and edited is not None:
                raise InvalidMessage(
                    f"Archived message {row.pk}: the edited arguments are refused. {error}"
                ) from error
            self._walk.skip("arguments refused", row.pk)
            return None

    def _template(self, row: ArchivedMessage, headers: Mapping[str, str], number: int) -> Template:
        task = task_of_row(row.topic, row.task)
        assert task is not None, "_undeclared() lets no such row pass"
        when = When.after(self._delay_ms)
        if self._rate is not None:
            spread_ms = math.ceil((self.sent_before + number) * 1000 / self._rate)
            when = When.at(self.began_ms + self._delay_ms + spread_ms)
        options = with_changes(
            task.options,
            topic=row.topic,
            when=when,
            ttr_ms=row.ttr_ms,
            max_attempts=task.options.max_attempts
            if row.max_attempts is None
            else row.max_attempts,
            priority=Priority(row.priority),
            expires=When(),
            on_duplicate="keep",  # one that comes in between is newer
            key=row.key or None,
            headers=headers,
            durable=True,
            replay_of=row.pk,
        )
        return Template(Task(task.definition, options), self._settings)

    def _insert(self, items: Mapping[int, Item]) -> dict[int, UUID]:
        """Insert the messages. Returns their ids by the ids of their origins."""
        now_us = get_store().now_us()
        rows = {
            pk: outbox.new_row(item, now_us, OutboxStatus.WAITING) for pk, item in items.items()
        }
        for row in rows.values():
            # They come after all that waits already: a million of them delay no other message.
            row.relay_at_ms = max(row.relay_at_ms, now_us // 1000)
        self._table.bulk_create([row for row in rows.values() if not row.key])
        # A message with the same key may have come a moment ago. The rows have one order, so that
        # two replays of the same keys wait for each other instead of deadlocking.
        keyed = sorted((row for row in rows.values() if row.key), key=lambda row: row.message_id)
        self._table.bulk_create(keyed, ignore_conflicts=True)
        ids = {row.message_id for row in keyed}
        ours = self._table.filter(message_id__in=ids, enqueued_at_us=now_us)
        refused = ids - set(ours.values_list("message_id", flat=True))
        for pk, row in rows.items():
            if row.message_id in refused:
                self._walk.skip("key live", pk)
        return {pk: row.message_id for pk, row in rows.items() if row.message_id not in refused}


def mark_replayed(rows: Rows, replayed: Mapping[int, UUID]) -> int:
    """Write into the rows of these ids which message replays each. Returns how many."""
    if not replayed:
        return 0
    # One statement for all, and not Case and When, which take Django longer than the rest.
    field: Any = ArchivedMessage._meta.get_field("replayed_by")
    connection = connections[rows.db]
    values = [
        (pk, field.get_db_prep_value(message_id, connection)) for pk, message_id in replayed.items()
    ]
    cases = f"CASE {connection.ops.quote_name('id')} {'WHEN %s THEN %s ' * len(values)}END"
    by = RawSQL(cases, tuple(chain.from_iterable(values)), field)
    return rows.filter(pk__in=replayed).update(replayed_by=by, replayed_at=timezone.now())


def _undeclared(row: Any, declared: Callable[[str], bool]) -> str:
    """Why this row cannot be a message, as far as the columns beside its body tell; or nothing."""
    if task_of_row(row.topic, row.task) is None:
        return "unknown task"
    if not declared(row.topic):
        return "unknown topic"
    # The archive writes \0 otherwise: then the row does not have the key.
    return "undecodable" if row.key and key_id(row.topic, row.key) != row.message_id.bytes else ""


def _why_hidden(redaction: str) -> str:
    return {"": "", UNDECRYPTABLE: UNDECRYPTABLE}.get(redaction, "redacted")


def _pair(edited: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(edited, tuple) and len(edited) == 2:
        args, kwargs = edited
        if isinstance(args, list | tuple) and isinstance(kwargs, Mapping):
            return args, kwargs
    raise InvalidMessage(f"edit returns (args, kwargs) or None, not {edited!r:.80}.")
