"""Runs a task in a transaction that also says that it ran."""

from __future__ import annotations

from collections.abc import Callable

from django.db import Error, IntegrityError, transaction

from ..core.conf import get_settings
from ..core.exceptions import Snooze
from ..core.message import stamp_us_of
from ..store.entries import Entry
from ..store.lease import Lease
from ..worker.executor import NO_DATABASE_DELAY
from . import archive_rows


def perform(
    lease: Lease, run: Callable[[], object], detail: Callable[[], tuple[int, bytes]]
) -> None:
    """Call `run` unless this life of the message has its archive row; commit what it wrote together
    with that row.

    `detail` gives, after the run, the time (ms) and the JSON for the row. A run that comes second,
    because an earlier one was committed and not acked, changes nothing; of two at the same time,
    the row lets one commit.
    """
    enqueued_at_us = stamp_us_of(lease.record) or 0
    try:
        if archive_rows.is_archived(lease.id, enqueued_at_us):
            return
    except Error as error:  # no attempt of the task
        raise Snooze(NO_DATABASE_DELAY) from error
    try:
        with transaction.atomic(using=get_settings().database):
            run()
            at_ms, raw_detail = detail()
            entry = Entry(
                b"",
                lease.partition,
                lease.id,
                "acked",
                at_ms,
                lease.record,
                lease.entry,
                raw_detail,
            )
            archive_rows.archive_once(entry)
    except IntegrityError:
        if not archive_rows.is_archived(lease.id, enqueued_at_us):
            raise
