"""Runs a task in a transaction that also says that it ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from django.db import Error, IntegrityError, NotSupportedError, connections, transaction

from ..core.conf import get_settings
from ..core.connections import open_blocks
from ..core.database import can_copy
from ..core.exceptions import Snooze, TransactionLeftOpen
from ..store.entries import Entry
from ..store.lease import Lease
from ..worker.executor import NO_DATABASE_DELAY
from . import archive_rows, copying


def _archive_once(entries: Sequence[Entry]) -> None:
    connection = connections[get_settings().database]
    if can_copy(entries, connection):
        with suppress(NotSupportedError), transaction.atomic(using=connection.alias):
            copying.copy_rows(copying.rows_to_copy(entries), connection)
            return
    archive_rows.archive_once(entries)


def perform(
    leases: Sequence[Lease],
    run: Callable[[Sequence[Lease]], object],
    detail: Callable[[Lease], tuple[int, bytes] | None],
) -> None:
    """Call `run` with the leases of those messages whose present life has no archive row yet;
    commit what it wrote together with their rows.

    `detail` gives, after the run, the time (ms) and the JSON for the row of one message, or None
    for a message that is not done. A run that comes second, because an earlier one was committed
    and not acked, changes nothing; of two at the same time, the row lets one commit. The other one
    is undone, and runs again for the messages that are left.
    """
    try:
        left = archive_rows.without_row(leases)
    except Error as error:  # no attempt of the task
        raise Snooze(NO_DATABASE_DELAY) from error
    connection = connections[get_settings().database]
    while left:
        try:
            with transaction.atomic(using=connection.alias):
                blocks = open_blocks()
                run(left)
                # The end of our block would end the task's instead: no row would be committed. One
                # of another alias fails the run too, which the row would keep from a second one.
                if open_blocks() != blocks:
                    raise TransactionLeftOpen
                entries = [
                    Entry(b"", lease.partition, lease.id, "acked", ended[0], lease.record,
                          lease.entry, ended[1])
                    for lease in left
                    if (ended := detail(lease)) is not None
                ]  # fmt: skip
                _archive_once(entries)
        except IntegrityError:
            before, left = left, archive_rows.without_row(left)
            if len(left) == len(before):  # it is the task's own
                raise
        else:
            return
