"""Runs a bulk operation on waiting messages: first it lists them with what is to become of each,
then it goes through its list in batches. It goes on from both places after a kill.

Before a batch is changed in Redis the operation notes how far it reaches. So whoever goes on knows
which messages may be changed already, and changes each once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import product

from django.db import transaction

from ..client.moving import Mover
from ..client.waiting_changes import (
    REFUSED,
    Cancelling,
    Editing,
    Moving,
    Shifting,
    WaitingBatch,
)
from ..core.exceptions import InvalidMessage, NotPermitted
from ..core.message import Message
from ..core.times import MAX_DELAY_MS, epoch_us
from ..models import BulkKind, BulkMessage, BulkOperation
from ..store.client import BATCH
from ..tasks.argument_edit import NOTHING_TO_EDIT, ArgumentEdit, digest
from ..tasks.registry import check_topic
from .bulk_run import BulkRun, decoded, edit_of, forget_old_lists, needed_for
from .topic_permission import Topics, topics_of_order
from .waiting_selection import PLACES, WaitingSelection, pages

#: Why a message of the list is not changed, as far as the list itself tells.
DUE_ALREADY = "due already"
TOO_FAR = "more than ten years ahead"
SAME = "has it already"
NOT_PERMITTED = "not permitted"


def run_waiting(run: BulkRun) -> None:
    """Run an operation, or go on with it. Raises Stopped, InvalidMessage and what the store
    does."""
    operation = run.operation
    selection = WaitingSelection.decode(operation.selection)
    options = decoded(operation.options)
    permitted = topics_of_order(options, *needed_for(operation.kind))
    edit_of(options)  # the task may have changed meanwhile
    if operation.kind == BulkKind.MOVE:
        check_topic(options["to"])
    named = {selection.topic, options.get("to", "")} - {""}
    if permitted is not None and (not permitted or not permitted.issuperset(named)):
        raise NotPermitted(f"{operation.operator} may not do this any more.")
    if operation.total is None:
        forget_old_lists()
        _list_messages(run, selection, permitted)
    if permitted is not None:
        # It may have been listed before who ordered it lost a right.
        listed = operation.messages.filter(pk__gt=operation.reached, skipped="")
        listed.exclude(topic__in=permitted).update(skipped=NOT_PERMITTED)
    skipped: Counter[str] = Counter()
    while messages := _next_messages(operation):
        _deal_with(run, selection, messages, skipped)
        run.rest()
    run.close(skipped)


# The list


def _list_messages(run: BulkRun, selection: WaitingSelection, permitted: Topics) -> None:
    """Write down the messages that fit, page by page."""
    operation = run.operation
    options = decoded(operation.options)
    to, edit = options.get("to", ""), edit_of(options)
    order = {place: number for number, place in enumerate(PLACES)}
    at = decoded(operation.cursor)
    begun = (at["topic"], order[at["place"]]) if at else ("", 0)
    for topic, place in product(selection.topics(), PLACES):
        here = topic, order[place]
        is_read = here < begun or (here == begun and at["after"] is None)
        if is_read or topic == to or (permitted is not None and topic not in permitted):
            continue
        for page in pages(selection, topic, place, at["after"] if here == begun else None):
            rows = [
                _listed(operation, message, edit)
                for message in page.messages
                if epoch_us(message.enqueued_at) <= operation.cutoff
            ]
            if not rows and page.cursor is None:
                continue  # there may be thousands of empty topics
            with transaction.atomic(using=run.alias):
                run.write(cursor=json.dumps({"topic": topic, "place": place, "after": page.cursor}))
                # The relay may have sent a message between both places: it is listed once.
                BulkMessage.objects.bulk_create(rows, ignore_conflicts=True)
            run.rest()
    run.counted(BulkMessage.objects.filter(operation=operation).count())


def _listed(operation: BulkOperation, message: Message, edit: ArgumentEdit | None) -> BulkMessage:
    due_ms, now_ms = epoch_us(message.due_at) // 1000, -(-operation.cutoff // 1000)
    to_ms, skipped = due_ms, ""
    if operation.kind in (BulkKind.SHIFT, BulkKind.RUN_NOW):
        by_ms = round(decoded(operation.options).get("by", 0.0) * 1000)
        if by_ms > 0:
            to_ms = due_ms + by_ms
            skipped = TOO_FAR if to_ms > now_ms + MAX_DELAY_MS else ""
        else:
            to_ms = now_ms if operation.kind == BulkKind.RUN_NOW else max(due_ms + by_ms, now_ms)
            skipped = DUE_ALREADY if due_ms <= now_ms else ""
    to_digest = ""
    if edit is not None:
        to_digest, skipped = _edited(edit, message)
    return BulkMessage(
        operation=operation,
        topic=message.topic,
        message_id=message.id,
        enqueued_at_us=epoch_us(message.enqueued_at),
        task=message.task[:200],
        key=message.key or "",
        due_at_ms=due_ms,
        to_due_at_ms=due_ms if skipped else to_ms,
        digest=to_digest,
        skipped=skipped,
    )


def _edited(edit: ArgumentEdit, message: Message) -> tuple[str, str]:
    """The digest of the arguments to be, or why there is none."""
    before = list(message.args), dict(message.kwargs)
    try:
        after = edit.edited(message.topic, before)
    except InvalidMessage:
        return "", REFUSED
    if after is None:
        return "", NOTHING_TO_EDIT
    to_digest = digest(after)
    return ("", SAME) if to_digest == digest(before) else (to_digest, "")


# The batches


def _next_messages(operation: BulkOperation) -> Sequence[BulkMessage]:
    """The next batch. What was in hand when a process died is a batch of its own."""
    rows = BulkMessage.objects.filter(operation=operation, pk__gt=operation.position)
    if operation.reached > operation.position:
        rows = rows.filter(pk__lte=operation.reached)
    return list(rows.order_by("pk")[:BATCH])


def _deal_with(
    run: BulkRun,
    selection: WaitingSelection,
    messages: Sequence[BulkMessage],
    skipped: Counter[str],
) -> None:
    """Change one batch, and note what has become of it."""
    operation, last = run.operation, messages[-1].pk
    batch = _batch_of(operation, selection, messages)
    if operation.dry_run:
        batch.locate()
    else:
        run.write(reached=last)
        _change(run, batch)
    with transaction.atomic(using=run.alias):
        # A write comes first: on SQLite, which has no row locks, a transaction that reads first may
        # not write afterwards.
        run.hold()
        if not operation.dry_run:
            batch.change_rows()
        for why in set(batch.skipped.values()):
            pks = [pk for pk, reason in batch.skipped.items() if reason == why]
            BulkMessage.objects.filter(pk__in=pks).update(skipped=why)
        skipped.update(batch.skipped.values())
        skipped.update(message.skipped for message in messages if message.skipped)
        run.enter(len(batch.changed()), last, skipped, is_done=True)
    operation.position = last
    if not operation.dry_run:
        batch.announce()
        if isinstance(batch, Cancelling):
            for topic in {message.topic for message in batch.messages}:
                run.await_archiver(topic)


def _batch_of(
    operation: BulkOperation, selection: WaitingSelection, messages: Sequence[BulkMessage]
) -> WaitingBatch:
    meant = [message for message in messages if not message.skipped]
    in_doubt = operation.reached >= messages[-1].pk
    if operation.kind == BulkKind.MOVE:
        to = decoded(operation.options)["to"]
        movers = {topic: Mover(topic, to) for topic in {message.topic for message in meant}}
        return Moving(
            meant, selection.fits, movers, in_doubt=in_doubt, is_dry_run=operation.dry_run
        )
    if operation.kind == BulkKind.CANCEL:
        reason = operation.reason or "cancelled"
        return Cancelling(meant, selection.fits, reason, operation.cutoff, in_doubt=in_doubt)
    if edit := edit_of(decoded(operation.options)):
        return Editing(meant, selection.fits, edit, in_doubt=in_doubt)
    return Shifting(meant, selection.fits, in_doubt=in_doubt)


def _change(run: BulkRun, batch: WaitingBatch) -> None:
    """Change what waits in Redis. Raises Stopped."""
    acquired: list[Mover] = []
    try:
        for mover in batch.movers.values() if isinstance(batch, Moving) else ():
            while not mover.acquire():
                run.wait()  # somebody else moves messages of the topic
            acquired.append(mover)
        batch.locate()
        batch.change_in_redis()
    finally:
        for mover in acquired:
            mover.release()
