"""Enqueues messages: at once, or when the open transaction commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..core.chunks import chunked
from ..core.conf import get_settings
from ..core.exceptions import DelayQError, InvalidMessage, OutcomeUnknown, StoreUnavailable
from ..core.message import is_same_content, window_mark, without_stamp
from ..outbox import outbox, postponed
from ..store import get_store
from ..store.client import BATCH
from ..store.store import base_mode, has_call, has_window
from ..tasks.builder import Item, build
from ..tasks.options import Options
from ..tasks.task import Call, Receipt
from . import on_commit
from .on_commit import Address
from .sender import Sender, refuse


def enqueue(chunks: Iterable[Sequence[Call]]) -> list[Receipt]:
    """Check, encode and store one message per call; inside a transaction when it commits. Returns
    their receipts. The calls of a chunk have one destination.

    An error that stops it half-way carries the receipts of what was sent before as `enqueued`.
    """
    return enqueue_built(build(calls) for calls in chunks)


def enqueue_built(chunks: Iterable[list[Item]]) -> list[Receipt]:
    """enqueue() of calls that were built before, by tasks.builder.build(): each chunk has one
    destination."""
    receipts: list[Receipt] = []
    sender = Sender()
    try:
        for items in chunks:
            receipts += [item.receipt for item in items]
            _send(sender, items, items[0].template.task.options)
        sender.finish()
    except BaseException as error:
        sender.give_up()
        if isinstance(error, DelayQError):
            error.enqueued = tuple(receipt for receipt in receipts if receipt.outcome)
        raise
    if sender.duplicates:
        refuse(sender.duplicates)
    return receipts


def in_chunks(calls: Iterable[Call]) -> Iterator[Sequence[Call]]:
    """Up to 500 calls of one destination each: same topic, same database, same moment of sending,
    durable or not."""
    for _, group in groupby(calls, attrgetter("task.destination")):
        yield from chunked(group, BATCH)


def _send(sender: Sender, items: list[Item], options: Options) -> None:
    """Send items of one destination, or let them wait for the commit."""
    if options.durable:
        alias = awaited_by_durable(options.database)
    else:
        alias = awaited(options.database, options.after_commit)
    if options.durable or alias is not None:
        items, recent = _split_recent(items)
        items, live = _split_live(items)
        sender.duplicates += recent + live
    if options.durable:
        if alias is not None:
            on_commit.give_way(items)
        unsent = [
            item.message.id
            for item in items
            if item.message.replaces and on_commit.find(*item.address)
        ]
        items, refused = outbox.accept(items, unsent)
        sender.duplicates += refused
    if alias is not None and items:
        on_commit.add(alias, items)
    elif items:
        if postponed.pending:
            postponed.catch_up(item.address for item in items)
        sender.store(items)


# Which transaction a message waits for, and a cancel or a reschedule


def awaited(database: str | None, after_commit: bool | None) -> str | None:
    """Alias of the open transaction to wait for. None: act at once.

    If several are open, it is that of DELAYQ["DATABASE"]. If a `database` is named, only its
    transaction counts. Raises InvalidMessage when the choice is not clear, or when a transaction is
    open that Django does not manage.
    """
    settings = get_settings()
    if not (settings.after_commit if after_commit is None else after_commit):
        return None
    home = connections[database or settings.database]
    if database is None and len(connections.settings) > 1:
        return _of_several(home)
    if home.in_atomic_block:
        return home.alias
    _refuse_manual(home)
    return None


def awaited_by_durable(database: str | None) -> str | None:
    """The same for a durable message, whose row has to be part of that transaction. Raises
    InvalidMessage."""
    home, alias = get_settings().database, awaited(database, True)
    if alias not in (None, home):
        raise InvalidMessage(
            f"A durable message is a row of its transaction, and its table is in "
            f'DELAYQ["DATABASE"], {home!r}; the transaction that is open is of {alias!r}. Open one '
            f"with transaction.atomic(using={home!r}), enqueue outside of both, or without "
            "durable=True."
        )
    return alias


def _of_several(home: BaseDatabaseWrapper) -> str | None:
    """The alias among all databases of the project. A transaction of a TestCase counts only if no
    other is open."""
    if home.in_atomic_block and not is_of_a_test(home):
        return home.alias
    known = connections.all(initialized_only=True)
    in_atomic = [connection for connection in known if connection.in_atomic_block]
    in_atomic = [
        connection for connection in in_atomic if not is_of_a_test(connection)
    ] or in_atomic
    if home in in_atomic or len(in_atomic) == 1:
        return home.alias if home in in_atomic else in_atomic[0].alias
    if not in_atomic:
        for connection in known:
            _refuse_manual(connection)
        return None
    raise InvalidMessage(
        f"Transactions are open on {' and '.join(open_.alias for open_ in in_atomic)}, and none on "
        f'DELAYQ["DATABASE"], {home.alias!r}: say which one to wait for, with '
        "using(database=...), or send at once, with using(after_commit=False)."
    )


def is_of_a_test(connection: BaseDatabaseWrapper) -> bool:
    """Whether only a TestCase has opened transactions here, which never commit."""
    return all(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _refuse_manual(connection: BaseDatabaseWrapper) -> None:
    """After set_autocommit(False) a rollback would not take back what was sent, and no hook tells
    of the commit."""
    if connection.connection is not None and not connection.autocommit:
        raise InvalidMessage(
            f"The connection {connection.alias!r} is in manual transaction management (autocommit "
            "is off), where nobody can tell when it commits: use transaction.atomic(), or say "
            "after_commit=False to act at once."
        )


# Duplicates that a call inside a transaction can see already. The commit finds later ones


def _split_live(items: list[Item]) -> tuple[list[Item], list[Receipt]]:
    """The items to accept, and the receipts of those that a live message forbids.

    Redis is asked once per partition, and only for keys and given ids that may not be live; for
    durable ones the outbox decides. While Redis is away nobody is refused here.
    """
    checked = [item for item in items if _is_checked(item)]
    if not checked:
        return items, []
    # A cancel that Redis has yet to hear of reaches it before the message does.
    taken = _live_records(
        [
            item
            for item in checked
            if not postponed.pending.get(item.address) and not on_commit.cancels(*item.address)
        ]
    )
    accepted: list[Item] = []
    refused: list[Receipt] = []
    for item in items:
        address, record = item.address, item.message.record
        other = None
        if _is_checked(item):
            pending = on_commit.find(*address)
            other = pending[1].message.record if pending else taken.get(address)
        # The flags do not count, as in enqueue.lua: one of them tells whether SQL has the message.
        if other is not None and not (item.template.may_exist and is_same_content(other, record)):
            refused.append(item.receipt)
            continue
        accepted.append(item)
        if item.template.fixed:
            taken[address] = record
    return accepted, refused


def _split_recent(items: list[Item]) -> tuple[list[Item], list[Receipt]]:
    """The items to accept, and the receipts of those to refuse, because the windows of their keys
    go on.

    Redis decides at the enqueue about a plain message; a call in a transaction only looks whether
    it has to raise. Of a durable message this is the decision: what SQL has accepted is sent.
    While Redis is away nobody is refused. The message that began the window is no duplicate of
    itself: its enqueue is repeated.
    """
    asked = [item for item in items if _has_window(item)]
    if not asked:
        return items, []
    if postponed.pending:
        postponed.catch_up(item.address for item in asked)
    recent = _recent(asked)
    refused: list[Receipt] = []
    accepted: list[Item] = []
    for item in items:
        if item.address not in recent or not _has_window(item):
            accepted.append(item)
        elif item.template.may_exist and (item.address[0], _mark(item)) in recent:
            if item.template.durable:
                item.receipt.outcome = "stored"
            else:
                accepted.append(item)
        else:
            item.receipt.outcome = "kept"
            if base_mode(item.message.mode) == "raise":
                refused.append(item.receipt)
    return accepted, refused


def _has_window(item: Item) -> bool:
    if not has_window(item.message.mode) or has_call(item.message.mode):
        return False  # whether a call is repeated says the enqueue alone
    is_asked = item.template.durable or base_mode(item.message.mode) == "raise"
    return is_asked and not on_commit.cancels(*item.address)  # a cancel frees the key


def _mark(item: Item) -> bytes:
    return window_mark(item.message.id, item.message.record)


def _recent(items: Sequence[Item]) -> set[tuple[str, bytes]]:
    """Topic and id of each whose window goes on, and topic and mark of each that has begun it."""
    store = get_store()
    if store.breaker.open:
        return set()
    try:
        return store.recent(
            (*item.address, member) for item in items for member in (item.message.id, _mark(item))
        )
    except (StoreUnavailable, OutcomeUnknown):
        return set()


def _is_checked(item: Item) -> bool:
    return (
        item.template.fixed
        and base_mode(item.message.mode) == "raise"
        and not item.template.durable
    )


def _live_records(items: Sequence[Item]) -> dict[Address, bytes]:
    """The live records, without their stamps, under the ids of these items."""
    store = get_store()
    if not items or store.breaker.open:
        return {}
    try:
        return {
            (partition.topic, found.id): without_stamp(found.record)
            for partition, found in store.find_many(item.address for item in items)
        }
    except (StoreUnavailable, OutcomeUnknown):
        if items[0].template.spills:
            store.breaker.trip()  # so that the commit does not wait for another timeout
        return {}
