"""Rows of an archive: many in a moment, with every odd content that a column may have."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.utils.timezone import get_default_timezone

from django_delayq.archive import archive_rows
from django_delayq.core.conf import get_settings
from django_delayq.core.message import new_ids
from django_delayq.models import ArchivedMessage

#: What has confused one reader or another.
ODD = (
    "", " ", "\n", "\r\n", "\t", ",", '"', '""', "'", "\\", "\\n", "\\N", "\\.", "NULL", "null", "nan", "0",
    'a "quoted", and\nbroken\r\nline', "ends with \\", "`backticks` %s %% ?", "Grüße, 世界 🦊", "\u2028\u00a0",
    "x" * 200,
)  # fmt: skip
#: Before and after 1970, with and without microseconds.
INSTANTS = (
    datetime(2026, 11, 20, 9, 0, tzinfo=timezone.utc),
    datetime(2026, 11, 20, 9, 0, 0, 1, tzinfo=timezone.utc),
    datetime(2026, 3, 29, 1, 30, 59, 999_999, tzinfo=timezone.utc),
    datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
    datetime(1912, 6, 23, 4, 5, 6, 789_000, tzinfo=timezone.utc),
    datetime(2400, 2, 29, 12, 0, 0, 120_000, tzinfo=timezone.utc),
)
_TIMES = ("enqueued_at", "due_at", "started_at", "finished_at")
_PLAIN: Mapping[str, Any] = {
    "topic": "orders", "partition": 0, "task": "tests.app.tasks.record", "key": "", "state": "acked", "reason": "",
    "body": '{"args":[],"kwargs":{}}', "headers": "", "priority": 1, "ttr_ms": 60_000, "max_attempts": None,
    "attempts": 1, "crashes": 0, "history": "", "lateness_ms": 1.5, "run_ms": 20.25, "worker": "host:1:a",
    "error_class": "", "error_message": "", "traceback": "", "replay_of": None,
    "result": "",
}  # fmt: skip


def make_rows(count: int, **columns: Any) -> list[int]:
    """Put rows into the archive, past bulk_create, and return their ids, oldest first.

    Each column is a value for all rows, or a function of the row's number. Times are aware
    datetimes: `finished_at` is INSTANTS[0] unless told; a row starts a second, is due two and is
    enqueued an hour before it. `message_id` is 16 bytes.
    """
    alias = get_settings().database
    before = _ids(alias)
    ids = sorted(new_ids(count))
    rows = [
        _row(number, {"message_id": ids[number], **columns}, connections[alias])
        for number in range(count)
    ]
    with transaction.atomic(using=alias):
        for at in range(0, count, 2_000):
            archive_rows.insert(rows[at : at + 2_000], connections[alias])
    return sorted(_ids(alias) - before)


def make_odd_rows() -> list[int]:
    """A row for each odd text, in every text column, and each instant, in every time; with nulls
    and without."""
    texts = {
        name: lambda n: ODD[n % len(ODD)]
        for name in (
            "key",
            "reason",
            "body",
            "headers",
            "history",
            "worker",
            "error_class",
            "error_message",
            "result",
        )
    }
    return make_rows(
        2 * len(ODD),
        **texts,
        traceback=lambda n: ODD[(n * 7) % len(ODD)],
        max_attempts=lambda n: n % 3 or None,
        started_at=lambda n: None if n % 2 else INSTANTS[n % len(INSTANTS)],
        finished_at=lambda n: INSTANTS[n % len(INSTANTS)],
        lateness_ms=lambda n: (None, 0.0, -3.5, 0.1 + 0.2, 1e-9, 12_345_678.901)[n % 6],
        run_ms=lambda n: (2.5e-300, None, 1.7e308)[n % 3],
        replay_of=lambda n: 2**62 + n if n % 4 == 0 else None,
        attempts=lambda n: 2_147_483_647 if n == 1 else n,
    )


def _row(number: int, given: Mapping[str, Any], connection: Any) -> tuple[Any, ...]:
    told = {name: value(number) if callable(value) else value for name, value in given.items()}
    finished = told.get("finished_at", INSTANTS[0])
    times = {
        "enqueued_at": finished - timedelta(hours=1),
        "due_at": finished - timedelta(seconds=2),
        "started_at": finished - timedelta(seconds=1),
        "finished_at": finished,
    }
    row = {**_PLAIN, **times, **told, "message_id": UUID(bytes=told["message_id"]).hex}
    row |= {name: _stored(row[name], connection) for name in _TIMES}
    return tuple(row[name] for name in archive_rows.COLUMNS)


def _stored(when: datetime | None, connection: Any) -> Any:
    """As the models of this project would store it."""
    from django.conf import settings

    if when is None:
        return None
    if not settings.USE_TZ:
        when = when.astimezone(get_default_timezone()).replace(tzinfo=None)
    return connection.ops.adapt_datetimefield_value(when)


def _ids(alias: str) -> set[int]:
    return set(ArchivedMessage.objects.using(alias).values_list("id", flat=True))
