"""Makes rows of the archive of finished messages, and inserts them so that doing it twice changes
nothing.

It does not use Django's bulk_create, which needs 50 us to make the instance of one such row. Here
the whole way of a row from the stream to the table takes less than that.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache, lru_cache, partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from django.utils.timezone import get_default_timezone

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.encryption import is_sealed
from ..core.exceptions import UndecodableMessage
from ..core.message import (
    ATTEMPTS,
    PRIORITY_BITS,
    Attempts,
    Body,
    Record,
    decode_body,
    is_record_sealed,
    stamp_us_of,
    task_code_of,
)
from ..core.times import stored_ms
from ..models import ArchivedMessage
from ..store.entries import Entry
from ..store.lease import Lease
from ..tasks import redaction
from ..tasks.naming import kept_task_name
from .row_arguments import sealed_arguments

logger = logging.getLogger("delayq")

COLUMNS = (
    "message_id", "enqueued_at", "topic", "partition", "task", "key", "state", "reason", "body",
    "headers", "priority", "ttr_ms", "max_attempts", "attempts", "crashes", "history", "due_at",
    "started_at", "finished_at", "lateness_ms", "run_ms", "worker", "error_class", "error_message",
    "traceback", "replay_of", "result",
)  # fmt: skip
#: Rows of one statement on SQLite, at most.
ROWS = 500
#: Characters of one statement on MariaDB and MySQL: a quarter of the smallest usual packet, for a
#: character may take four bytes.
PACKET = 1_000_000
RowValues = tuple[Any, ...]
#: The body of a message and its arguments as the archive shows them.
Content = tuple[Body, str]

_IGNORE = "ON CONFLICT (message_id, enqueued_at) DO NOTHING"
_NEVER_CLAIMED = Attempts(0, 0, 0, 0, b"")
_NOTHING = msgspec.Raw(b"")
#: The last instant that a datetime can hold, in ms. A later one is damage.
LAST_MS = int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp() * 1000)


class FinishDetail(msgspec.Struct, omit_defaults=True, gc=False):
    """What the process that ended a message reports about the last run. Each line of a history has
    the same form."""

    worker: str = ""
    started_ms: float = 0
    run_ms: float | None = None
    reason: str = ""
    error: str = ""
    """Class of the exception."""
    message: str = ""
    traceback: str = ""
    result: msgspec.Raw = _NOTHING
    """JSON, of a task that keeps its result."""
    progress: msgspec.Raw = _NOTHING
    """JSON, of a task that reported one."""
    archived: bool = False
    """The row was committed by the run itself, as that of an exactly_once task."""


_decode_detail = msgspec.json.Decoder(FinishDetail).decode
_encode = msgspec.json.encode


class Forms(NamedTuple):
    """How the values of a row are written."""

    message_id: Callable[[bytes], Any]
    instant: Callable[[int], Any]
    """Of microseconds since 1970. Raises ValueError or OverflowError for what no calendar has."""


#: As the fields of the model hold them.
OBJECTS = Forms(lambda message_id: UUID(bytes=message_id), lambda us: stored_ms(us / 1000))


def forms_of(connection: BaseDatabaseWrapper) -> Forms:
    """As the parameters of a statement hold them."""
    if connection.vendor == "postgresql":
        return Forms(bytes.hex, OBJECTS.instant)
    zone = connection.timezone if settings.USE_TZ else get_default_timezone()
    # A row has four instants, and a batch has few seconds: to make these texts anew would be most
    # of the work for a row. Messages that end together also share most of the instants.
    texts: dict[int, str] = {}

    @cache
    def instant(us: int) -> str:
        """Django's text."""
        seconds, microseconds = divmod(us, 1_000_000)
        text = texts.get(seconds)
        if text is None:
            whole = datetime.fromtimestamp(seconds, zone).replace(tzinfo=None)
            text = texts[seconds] = str(whole)
        return f"{text}.{microseconds:06}" if microseconds else text

    return Forms(bytes.hex, instant)


def to_archive(entries: Sequence[Entry]) -> list[Entry]:
    """Those entries that their topic's setting archives, and whose run has not done so."""
    archive_of = get_settings().archive_of
    # The setting is all, dead or none, and dead is also a state.
    wanted = {topic: archive_of(topic) for topic in {entry.partition.topic for entry in entries}}
    return [
        entry
        for entry in entries
        if wanted[entry.partition.topic] in ("all", entry.state)
        # Few entries have the words. Those may be the task's own, in its result.
        and (b'"archived":true' not in entry.detail or not detail_of(entry.detail).archived)
    ]


def rows_of(entries: Sequence[Entry], connection: BaseDatabaseWrapper) -> list[RowValues]:
    """The rows of those entries that are kept. Raises what row_of() does."""
    forms = forms_of(connection)
    return [row_of(entry, forms) for entry in to_archive(entries)]


def row_of(entry: Entry, forms: Forms, content: Content | None = None) -> RowValues:
    """The values of COLUMNS. A record that cannot be read becomes a row that says so.

    `content`: see content_of(). Raises StoreError when Redis has to be asked for the name of a task
    that is unknown here, and ValueError or OverflowError for times that no calendar has.
    """
    instant = forms.instant
    attempts = (
        Attempts.decode(entry.attempts) if len(entry.attempts) >= ATTEMPTS.size else _NEVER_CLAIMED
    )
    detail = detail_of(entry.detail)
    record, body, arguments = content_of(entry, content)
    due_ms = entry.due_ms or attempts.due_at_ms or entry.at_ms
    started_ms = detail.started_ms or None
    # When the first run began. The start of an earlier run than the last is not known: its claim
    # came a moment before.
    first_ms = (None if attempts.history else started_ms) or attempts.first_claimed_at_ms
    return (
        forms.message_id(entry.id),
        instant(record.enqueued_at_us),
        entry.partition.topic,
        entry.partition.number,
        kept_task_name(entry.partition, record.task_code)[:200],
        _without_nul(body.key) if body.key else "",
        entry.state,
        _without_nul(detail.reason)[:200] if detail.reason else "",
        arguments,
        _encode(body.headers).decode() if body.headers else "",
        record.flags & PRIORITY_BITS,
        record.ttr_ms,
        body.max_attempts,
        attempts.attempt,
        attempts.crashes,
        attempts.history.decode("utf-8", "replace"),
        instant(due_ms * 1000),
        instant(round(first_ms * 1000)) if first_ms else None,
        instant(entry.at_ms * 1000),
        None if started_ms is None else round(started_ms - due_ms, 3),
        detail.run_ms,
        _without_nul(detail.worker)[:200],
        # Empty in most rows.
        _without_nul(detail.error)[:200] if detail.error else "",
        _without_nul(detail.message) if detail.message else "",
        _without_nul(detail.traceback) if detail.traceback else "",
        body.replay_of,
        _result(entry, record.task_code, detail) if detail.result or detail.progress else "",
    )


def content_of(entry: Entry, content: Content | None = None) -> tuple[Record, Body, str]:
    """Record, body and arguments as far as they can be read. The arguments are redacted where
    DELAYQ says so.

    `content` is that of an entry whose record was cut to its header, because arguments are
    redacted.
    """
    try:
        record = Record.decode(entry.record)
        if content is None:
            body = decode_body(record.flags, record.body, entry.id)
            content = body, _arguments(entry, record, body)
    except UndecodableMessage:
        # A body that is encrypted stays as it is: somebody may have its key.
        if content is None and is_record_sealed(entry.record):
            record = Record.decode(entry.record)
            return record, Body(), sealed_arguments(record.body, entry.id)
        # Only these parts of the record are certain.
        enqueued_at_us = stamp_us_of(entry.record) or 0
        if not 0 < enqueued_at_us // 1000 < LAST_MS:
            enqueued_at_us = entry.at_ms * 1000
        code = task_code_of(entry.record).ljust(4, b"\0")
        record = Record(enqueued_at_us, 0, 1, 0, code, b"")
        if content is None:
            raw = _encode({"record": base64.b64encode(entry.record).decode()}).decode()
            # What cannot be read cannot be redacted either.
            hides = redaction.hides(task_code_of(entry.record))
            content = Body(), redaction.FAILED if hides else raw
    return record, *content


def insert(
    rows: Sequence[RowValues], connection: BaseDatabaseWrapper, *, strict: bool = False
) -> None:
    """Insert the rows. A row that is already there stays as it is; with `strict` it raises
    IntegrityError. They are inserted in the order of their ids, so that two archivers with the same
    rows wait for each other and do not deadlock."""
    rows = sorted(rows, key=itemgetter(0, 1))
    into = partial(_statement, connection.alias, strict=strict)
    # A column that holds the same in all rows (most do, in a batch of one topic) is passed once:
    # that halves the time.
    same, varying = {}, {}
    for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        if column.count(column[0]) == len(rows):
            same[name] = column[0]
        else:
            varying[name] = column
    with connection.cursor() as cursor:
        if not varying:
            cursor.execute(into(tuple(same), f"VALUES ({_holes(same)})"), [*same.values()])
        elif connection.vendor == "mysql":
            _insert_texts(cursor, into, same, varying)
        elif connection.vendor == "postgresql":
            # One statement with an array for each column takes a third less time than executemany.
            kinds = dict(zip(COLUMNS, _types(connection.alias), strict=True))
            arrays = [f"unnest(%s::{kinds[name]}[])" for name in varying]
            values = ", ".join([*arrays, *(f"%s::{kinds[name]}" for name in same)])
            cursor.execute(
                into((*varying, *same), f"SELECT {values}"),
                [*map(list, varying.values()), *same.values()],
            )
        else:
            # One statement for many rows: with one for each, the interpreter's lock is given back
            # and taken again for each, while the archiver reads ahead.
            most = min(ROWS, max(1, (_most_parameters(connection) - len(same)) // len(varying)))
            columns = ", ".join([*["%s"] * len(same), "v.*"])
            parts = chunked(zip(*varying.values(), strict=True), most)
            for size, alike in groupby(parts, key=len):
                values = ", ".join([f"({_holes(varying)})"] * size)
                cursor.executemany(
                    into(
                        (*same, *varying), f"SELECT {columns} FROM (VALUES {values}) v WHERE true"
                    ),
                    [[*same.values(), *chain.from_iterable(part)] for part in alike],
                )


def archive_all(entries: Sequence[Entry]) -> None:
    """Insert the rows of those entries that their topic's setting archives. It runs within the
    caller's transaction, if there is one."""
    connection = connections[get_settings().database]
    if rows := rows_of(entries, connection):
        insert(rows, connection)


def archive_once(entries: Sequence[Entry]) -> None:
    """Insert the rows of these entries, whatever the setting says. Raises IntegrityError when one
    of them is already there."""
    connection = connections[get_settings().database]
    forms = forms_of(connection)
    if rows := [row_of(entry, forms) for entry in entries]:
        insert(rows, connection, strict=True)


def is_archived(message_id: bytes, enqueued_at_us: int) -> bool:
    """Whether this life of a message has its row."""
    life = {"message_id": UUID(bytes=message_id), "enqueued_at": stored_ms(enqueued_at_us / 1000)}
    return bool(ArchivedMessage.objects.filter(**life).exists())


def without_row(leases: Sequence[Lease]) -> Sequence[Lease]:
    """The leases of those messages whose present life has no row."""
    lives = {
        (UUID(bytes=lease.id), stored_ms((stamp_us_of(lease.record) or 0) / 1000)): lease
        for lease in leases
    }
    ids, instants = zip(*lives, strict=True) if lives else ((), ())
    rows = ArchivedMessage.objects.filter(message_id__in=ids)
    if instants:  # a partitioned archive is asked for these months only: it plans for each one
        rows = rows.filter(enqueued_at__range=(min(instants), max(instants)))
    for life in rows.values_list("message_id", "enqueued_at"):
        lives.pop(life, None)
    return list(lives.values())


def detail_of(raw: bytes) -> FinishDetail:
    """The report of the process that ended a message, as far as it can be read."""
    try:
        return _decode_detail(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return FinishDetail(reason="unreadable detail")


def reported_in(text: str) -> dict[str, Any]:
    """What the column `result` holds: `result`, `progress` and `redaction`, as far as there are
    any."""
    return msgspec.json.decode(text, type=dict[str, Any]) if text else {}


def without_result(raw: bytes) -> bytes:
    """The report of the process that ended a message, without a result: that may not be shown."""
    return _encode(msgspec.structs.replace(detail_of(raw), result=_NOTHING))


def _result(entry: Entry, code: bytes, detail: FinishDetail) -> str:
    fields: dict[str, Any] = {}
    if detail.progress:
        fields["progress"] = detail.progress
    if detail.result and not redaction.hides(code):
        fields["result"] = detail.result
    elif detail.result:
        topic, name = entry.partition.topic, kept_task_name(entry.partition, code)
        value = {"result": msgspec.json.decode(detail.result)}
        seen = redaction.shown_arguments(topic, name, [], value)
        if "result" in seen.kwargs:
            fields["result"] = seen.kwargs["result"]
        if seen.redaction:
            fields["redaction"] = seen.redaction
    return _without_nul(_encode(fields).decode())


def _arguments(entry: Entry, record: Record, body: Body) -> str:
    if get_settings().encryption_keys or is_sealed(record.body):
        return sealed_arguments(record.body, entry.id)
    if not redaction.hides(record.task_code):
        if record.body[:1] == b"[":  # most bodies; decode_body() has read this one
            return f'{{"args":{record.body.decode()},"kwargs":{{}}}}'
        return _encode({"args": body.args, "kwargs": body.kwargs}).decode()
    name = kept_task_name(entry.partition, record.task_code)
    return redaction.shown_arguments(entry.partition.topic, name, body.args, body.kwargs).as_json()


def _without_nul(text: str) -> str:
    """PostgreSQL's text cannot hold the character 0."""
    return text.replace("\0", "\\0")


def _holes(columns: Collection[str]) -> str:
    return ", ".join(["%s"] * len(columns))


def _insert_texts(
    cursor: CursorWrapper,
    into: Callable[[Collection[str], str], str],
    same: Mapping[str, Any],
    varying: Mapping[str, Sequence[Any]],
) -> None:
    """Insert into MariaDB or MySQL what is the same in all rows, and what varies.

    Not by executemany(): for that, drivers in Python escape each value of each row, which takes
    three times as long.
    """
    if not hasattr(cursor, "mogrify"):  # another driver than PyMySQL and mysqlclient
        count = len(next(iter(varying.values())))
        varying = {**{name: [value] * count for name, value in same.items()}, **varying}
        same = {}
    constants = cursor.mogrify(_holes(same), [*same.values()]) if same else ""
    row = f"({', '.join(filter(None, [constants.replace('%', '%%'), _holes(varying)]))})"
    for part in _of_bounded_size([*zip(*varying.values(), strict=True)], len(row)):
        statement = into((*same, *varying), f"VALUES {', '.join([row] * len(part))}")
        cursor.execute(statement, [*chain.from_iterable(part)])


def _of_bounded_size(rows: Sequence[RowValues], besides: int) -> Iterator[Sequence[RowValues]]:
    """The rows in parts that one packet of MariaDB or MySQL holds. `besides`: the size of what each
    row has besides these values."""
    first = size = 0
    for number, row in enumerate(rows):
        own = besides + sum(len(value) for value in row if isinstance(value, str))
        if size and size + own > PACKET:
            yield rows[first:number]
            first, size = number, 0
        size += own
    yield rows[first:]


def _most_parameters(connection: BaseDatabaseWrapper) -> int:
    """How many one statement of SQLite takes."""
    if sys.version_info >= (3, 11):
        from sqlite3 import SQLITE_LIMIT_VARIABLE_NUMBER

        return int(connection.connection.getlimit(SQLITE_LIMIT_VARIABLE_NUMBER))
    return 999  # as many as the oldest takes that Django knows


def _statement(alias: str, columns: Collection[str], values: str, *, strict: bool) -> str:
    """An INSERT that leaves a row that is already there. A strict one fails then."""
    connection = connections[alias]
    quote = connection.ops.quote_name
    # Not Django's INSERT IGNORE, which swallows more than a second row of the same life.
    ignore = "ON DUPLICATE KEY UPDATE topic = topic" if connection.vendor == "mysql" else _IGNORE
    return (
        f"INSERT INTO {quote(ArchivedMessage._meta.db_table)} "
        f"({', '.join(map(quote, columns))}) {values} {'' if strict else ignore}"
    )


@lru_cache(maxsize=4)
def _types(alias: str) -> list[str]:
    """The types of COLUMNS in the database."""
    field = ArchivedMessage._meta.get_field
    return [str(field(name).db_type(connections[alias])) for name in COLUMNS]
