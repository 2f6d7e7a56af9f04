"""Makes rows of the archive of finished messages, and inserts them so that doing it twice changes
nothing.

Past Django's bulk_create, which needs 50 us for a row of these 29 columns in instances alone: the
whole way of a row from the stream to the table takes less than that here.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from ..core.conf import Settings, get_settings
from ..core.exceptions import UndecodableMessage
from ..core.message import (
    ATTEMPTS,
    PRIORITY_BITS,
    Attempts,
    Body,
    Record,
    decode_body,
    stamp_us_of,
    task_code_of,
)
from ..core.times import stored_ms
from ..models import ArchivedMessage
from ..store.finished import Entry
from ..store.keys import Partition
from ..tasks.naming import kept_task_name

logger = logging.getLogger("delayq")

COLUMNS = (
    "message_id", "enqueued_at", "topic", "partition", "task", "key", "state", "reason", "body",
    "headers", "priority", "ttr_ms", "max_attempts", "attempts", "crashes", "history", "due_at",
    "started_at", "finished_at", "lateness_ms", "run_ms", "worker", "error_class", "error_message",
    "traceback", "replay_of",
)  # fmt: skip
RowValues = tuple[Any, ...]
#: The body of a message and its arguments as the archive shows them.
Content = tuple[Body, str]

_IGNORE = "ON CONFLICT (message_id, enqueued_at) DO NOTHING"
_REDACTION_FAILED = '{"args":[],"kwargs":{},"redaction":"failed"}'
_NEVER_CLAIMED = Attempts(0, 0, 0, 0, b"")
#: The last instant that a datetime can hold, in ms: what lies beyond is damage.
_LAST_MS = int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp() * 1000)


class FinishDetail(msgspec.Struct):
    """What the process that ended a message says of it. Also one line of a history."""

    worker: str = ""
    started_ms: float = 0
    run_ms: float | None = None
    reason: str = ""
    error: str = ""
    """Class of the exception."""
    message: str = ""
    traceback: str = ""


_decode_detail = msgspec.json.Decoder(FinishDetail).decode
_encode = msgspec.json.encode


def wanted(entry: Entry, settings: Settings) -> bool:
    """Whether the topic's setting makes a row of this entry."""
    archive = settings.archive_of(entry.partition.topic)
    return archive == "all" or (archive == "dead" and entry.state == "dead")


def row_of(
    entry: Entry, connection: BaseDatabaseWrapper, content: Content | None = None
) -> RowValues:
    """The values of COLUMNS, as the database takes them. A record that cannot be read becomes a row
    that says so.

    `content` is that of an entry whose record was cut to its header, because arguments are
    redacted. Raises StoreError when the name of a task that is unknown here has to be asked for,
    and ValueError or OverflowError for times that no calendar has.
    """
    instant = _adapter(connection)
    attempts = (
        Attempts.decode(entry.attempts) if len(entry.attempts) >= ATTEMPTS.size else _NEVER_CLAIMED
    )
    detail = detail_of(entry.detail)
    record, body, arguments = content_of(entry) if content is None else (_header(entry), *content)
    due_ms = entry.due_ms or attempts.due_at_ms or entry.at_ms
    started_ms = detail.started_ms or None
    return (
        entry.id.hex(),
        instant(record.enqueued_at_us / 1000),
        entry.partition.topic,
        entry.partition.number,
        kept_task_name(entry.partition, record.task_code)[:200],
        _without_nul(body.key or ""),
        entry.state,
        _without_nul(detail.reason)[:200],
        arguments,
        _encode(body.headers).decode() if body.headers else "",
        record.flags & PRIORITY_BITS,
        record.ttr_ms,
        body.max_attempts,
        attempts.attempt,
        attempts.crashes,
        attempts.history.decode("utf-8", "replace"),
        instant(due_ms),
        _first_start(attempts, started_ms, instant),
        instant(entry.at_ms),
        None if started_ms is None else round(started_ms - due_ms, 3),
        detail.run_ms,
        _without_nul(detail.worker)[:200],
        _without_nul(detail.error)[:200],
        _without_nul(detail.message),
        _without_nul(detail.traceback),
        body.replay_of,
    )


def content_of(entry: Entry) -> tuple[Record, Body, str]:
    """Record, body and arguments as far as they can be read. The arguments are redacted where
    DELAYQ says so."""
    try:
        record = Record.decode(entry.record)
        body = decode_body(record.flags, record.body)
        return record, body, _arguments(entry.partition, record.task_code, body)
    except UndecodableMessage:
        return _damaged(entry), Body(), _unreadable(entry.record)


def _header(entry: Entry) -> Record:
    try:
        return Record.decode(entry.record)
    except UndecodableMessage:
        return _damaged(entry)


def insert(rows: Sequence[RowValues], connection: BaseDatabaseWrapper) -> None:
    """Insert the rows; those that are there already stay as they are. In the order of their ids, so
    that two archivers with the same rows wait for each other instead of deadlocking."""
    rows = sorted(rows, key=lambda row: row[:2])
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(*_unnested(rows, connection))
        else:
            cursor.executemany(_statement(connection.alias), rows)


def archive_all(entries: Sequence[Entry]) -> None:
    """Insert rows where DELAYQ says. Within the caller's transaction, if there is one."""
    connection = connections[get_settings().database]
    if entries:
        insert([row_of(entry, connection) for entry in entries], connection)


def archive_once(entry: Entry) -> None:
    """Insert one row, as archive_all does. Raises IntegrityError when it is there already."""
    connection = connections[get_settings().database]
    with connection.cursor() as cursor:
        cursor.execute(_statement(connection.alias, strict=True), row_of(entry, connection))


def is_archived(message_id: bytes, enqueued_at_us: int) -> bool:
    """Whether this life of a message has its row."""
    connection = connections[get_settings().database]
    life = {"message_id": UUID(bytes=message_id), "enqueued_at": stored_ms(enqueued_at_us / 1000)}
    return bool(ArchivedMessage.objects.using(connection.alias).filter(**life).exists())


def _adapter(connection: BaseDatabaseWrapper) -> Callable[[float], Any]:
    adapt = connection.ops.adapt_datetimefield_value
    return lambda milliseconds: adapt(stored_ms(milliseconds))


def detail_of(raw: bytes) -> FinishDetail:
    """What the process that ended a message says of it, as far as it can be read."""
    try:
        return _decode_detail(raw)
    except (msgspec.MsgspecError, UnicodeError):
        return FinishDetail(reason="unreadable detail")


def _first_start(
    attempts: Attempts, started_ms: float | None, instant: Callable[[float], Any]
) -> Any:
    """When the first run began: the only one's start, else the first claim, which comes a moment
    before."""
    if started_ms is not None and not attempts.history:
        return instant(started_ms)
    return instant(attempts.first_claimed_at_ms) if attempts.first_claimed_at_ms else None


def _arguments(partition: Partition, code: bytes, body: Body) -> str:
    args, kwargs = body.args, body.kwargs
    redact = get_settings().redact
    if not redact:
        return _encode({"args": args, "kwargs": kwargs}).decode()
    plain = _encode(
        {"args": args, "kwargs": kwargs}
    )  # before: a redactor may change what it is given
    try:
        shown = _redactor(redact)(partition.topic, kept_task_name(partition, code), args, kwargs)
        if _encode({"args": shown[0], "kwargs": shown[1]}) == plain:
            return plain.decode()
        # Marked, so that a replay does not take what is left for the arguments.
        return _encode({"args": shown[0], "kwargs": shown[1], "redaction": "done"}).decode()
    except Exception:  # what may not be shown is not shown, whatever goes wrong
        logger.exception("DELAYQ['REDACT'] failed; the arguments are left out of the archive")
        return _REDACTION_FAILED


def _unreadable(record: bytes) -> str:
    """For people. What cannot be read cannot be redacted either."""
    if get_settings().redact:
        return _REDACTION_FAILED
    return _encode({"record": base64.b64encode(record).decode()}).decode()


@lru_cache(maxsize=4)
def _redactor(path: str) -> Callable[..., tuple[Any, Any]]:
    redactor: Callable[..., tuple[Any, Any]] = import_string(path)
    return redactor


def _damaged(entry: Entry) -> Record:
    """A record that cannot be read: what is certain of it."""
    enqueued_at_us = stamp_us_of(entry.record) or 0
    if not 0 < enqueued_at_us // 1000 < _LAST_MS:
        enqueued_at_us = entry.at_ms * 1000
    return Record(enqueued_at_us, 0, 1, 0, task_code_of(entry.record).ljust(4, b"\0"), b"")


def _without_nul(text: str) -> str:
    """PostgreSQL's text cannot hold the character 0."""
    return text.replace("\0", "\\0")


@lru_cache(maxsize=16)
def _statement(alias: str, values: str = "", *, strict: bool = False) -> str:
    """INSERT that leaves what is there; strict: that fails then."""
    connection = connections[alias]
    ops, meta = connection.ops, ArchivedMessage._meta
    columns = ", ".join(ops.quote_name(name) for name in COLUMNS)
    values = values or f"VALUES ({', '.join(['%s'] * len(COLUMNS))})"
    # Not Django's INSERT IGNORE, which swallows more than a second row of the same life.
    ignore = "ON DUPLICATE KEY UPDATE topic = topic" if connection.vendor == "mysql" else _IGNORE
    return (
        f"INSERT INTO {ops.quote_name(meta.db_table)} ({columns}) {values} "
        f"{'' if strict else ignore}"
    )


def _unnested(rows: Sequence[RowValues], connection: BaseDatabaseWrapper) -> tuple[str, list[Any]]:
    """One statement with an array for each column: a third quicker than executemany. A column that
    holds the same in all rows (most do, in a batch of one topic) is passed once: that halves the
    rest."""
    sources, parameters = [], []
    for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
        kind = _type(connection.alias, name)
        if column.count(column[0]) == len(rows):
            sources.append(f"%s::{kind}")
            parameters.append(column[0])
        else:
            sources.append(f"unnest(%s::{kind}[])")
            parameters.append(list(column))
    if not any(source.startswith("unnest") for source in sources):
        return _statement(connection.alias), list(rows[0])
    return _statement(connection.alias, f"SELECT {', '.join(sources)}"), parameters


@lru_cache(maxsize=64)
def _type(alias: str, name: str) -> str:
    kind = ArchivedMessage._meta.get_field(name).db_type(connections[alias])
    return str(kind)
