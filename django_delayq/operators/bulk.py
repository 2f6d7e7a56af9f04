"""Bulk operations as operators see them: the preview, the order, the progress, and cancelling. A
worker runs an ordered operation (bulk_runner.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from ..archive.selection import Rows, Selection, newest_id
from ..client.topics import topic_stats
from ..core.exceptions import InvalidMessage
from ..core.message import Message
from ..models import ArchivedMessage, BulkKind, BulkOperation, BulkStatus, OperatorAction
from ..outbox.existing import check_existing
from ..outbox.listing import CAP, count_outbox
from ..tasks.argument_edit import ArgumentEdit
from .bulk_run import PERMISSIONS, decoded, edit_of, needed_for, order, stored_options
from .operations import User, check_reason, clean, require
from .topic_permission import Topics, options_of_order, permitted_topics
from .waiting_selection import WaitingSelection, waiting_messages

#: What is done to dead letters, or to all that waits in a topic. For others see waiting_orders.py.
DEAD_LETTER_KINDS = (BulkKind.REPLAY, BulkKind.DISCARD, BulkKind.PURGE)
#: For more messages the operator has to type a word.
MANY = 10_000
#: Dead letters are counted up to this number before the order. A dry run counts all.
COUNTED = 30_000
#: The word to type when the operation is about more than one topic.
ALL_TOPICS = "everything"
SAMPLE = 5
#: When no worker has taken an operation for this long, there seems to be no worker for it.
UNTAKEN_AFTER = timedelta(seconds=15)
#: A worker that has not written for this long has died. Another worker goes on.
SILENT_AFTER = timedelta(seconds=30)
#: Rows that were skipped for these reasons do not belong to the operation.
NOT_MEANT = ("not dead", "already replayed", "discarded")

_SHOWN = ("pk", "message_id", "topic", "task", "key", "state", "reason", "error_class",
"finished_at", "replayed_at",
          "discarded_at")  # fmt: skip


# Before the order


@dataclass(frozen=True, kw_only=True)
class BulkPreview:
    """What a bulk operation would be about, as of now."""

    count: int
    """Messages. Dead letters are counted up to COUNTED, the outbox up to outbox.listing.CAP."""
    is_partial: bool
    """Whether there may be more."""
    sample: Sequence[ArchivedMessage] = ()
    """The newest few dead letters, without their bodies."""
    waiting: Sequence[Message] = ()
    """Of a purge, the few that are due first."""
    word: str
    """What has to be typed to confirm it, because there are more than MANY; else empty."""


def preview(kind: str, selection: Selection, topics: Topics = None) -> BulkPreview:
    """Count the messages, and read the newest; only of these topics. The cost has a bound. Raises
    UnknownTopic and StoreUnavailable for a purge."""
    if BulkKind(kind) is BulkKind.PURGE:
        stats, outbox = topic_stats(selection.topic), count_outbox(selection.topic)
        count = stats.delayed + stats.backlog + outbox
        first = waiting_messages(WaitingSelection(topic=selection.topic))
        return BulkPreview(
            count=count,
            is_partial=outbox >= CAP,
            waiting=list(islice(first, SAMPLE)),
            word=selection.topic if count > MANY else "",
        )
    seen = None if topics is None else tuple(topics)
    rows = selected_dead_letters(selection.narrowed(topics=seen))
    count = rows.order_by()[: COUNTED + 1].count()
    return BulkPreview(
        count=min(count, COUNTED),
        is_partial=count > COUNTED,
        sample=list(rows.order_by("-finished_at").only(*_SHOWN)[:SAMPLE]) if count else [],
        word=(selection.topic or ALL_TOPICS) if count > MANY else "",
    )


def selected_dead_letters(selection: Selection) -> Rows:
    """The rows that replay and discard would change. Rows that are named one by one are shown as
    they are."""
    return (selection if selection.ids else selection.narrowed(open=True)).rows()


def check_order(
    kind: str, selection: Selection, delay: float = 0, rate: float | None = None
) -> None:
    """Raise InvalidMessage for an order that makes no sense."""
    if kind not in DEAD_LETTER_KINDS:
        raise InvalidMessage(
            f"{kind!r} is not a bulk operation: use one of {', '.join(DEAD_LETTER_KINDS)}."
        )
    if selection.argument:
        raise InvalidMessage(
            "A search for an argument cannot be a bulk operation: narrow it down by other filters."
        )
    if kind == BulkKind.PURGE:
        check_existing(selection.topic)
        if selection != Selection(topic=selection.topic):
            raise InvalidMessage("purge is about all that waits in one topic.")
    elif selection.is_everything:
        raise InvalidMessage("Say which: by state, topic, task, error, period, key, or one by one.")
    if not 0 <= delay <= timedelta(days=3660).total_seconds() or (
        rate is not None and not 0 < rate < 1e9
    ):
        raise InvalidMessage(
            "delay is 0 to ten years in seconds, rate a number of messages per second above 0."
        )


# Orders


def start(  # noqa: PLR0913 - keyword-only, and an operator may give each of them
    user: User,
    kind: str,
    selection: Selection,
    *,
    reason: str,
    dry_run: bool = False,
    delay: float = 0,
    rate: float | None = None,
    edit: ArgumentEdit | None = None,
    token: UUID | None = None,
) -> BulkOperation:
    """Store an operation; a worker that archives takes it up within seconds.

    replay and discard: dead letters among the selection, as of now. purge: what waits in the
    selection's topic. `delay` (seconds) and `rate` (messages per second) are those of replay().
    `edit`: what becomes of one argument of the replayed messages; it is about those of its task.
    With a `token` the same order, or a dry run of it, is stored once, and returned when it comes
    again. Raises NotPermitted or InvalidMessage.
    """
    if kind in BulkKind.values:
        require(user, *needed_for(kind, edits=edit is not None), topic=selection.topic)
    check_order(kind, selection, delay, rate)
    if edit is not None:
        if kind != BulkKind.REPLAY or selection.task not in ("", edit.task):
            raise InvalidMessage("An edit is for a replay of messages of its task.")
        selection = selection.narrowed(task=edit.task)
    if not dry_run:
        check_reason(reason)
    operation = BulkOperation(
        kind=kind,
        dry_run=dry_run,
        selection=selection.encode(),
        options=stored_options(
            {
                "delay": delay,
                "rate": rate,
                **({"edit": edit.encode()} if edit else {}),
                **options_of_order(user),
            }
        ),
        cutoff=newest_id(),
        token=token,
    )
    others = selection.narrowed(topic="")
    words = "" if selection.topic and others.is_everything else others.in_words()
    words = ", ".join(filter(None, (words, edit.in_words() if edit else "")))
    return order_once(operation, user, reason, topic=selection.topic, selection=words)


def order_once(operation: BulkOperation, user: User, reason: str, **fields: Any) -> BulkOperation:
    """Store an operation, once for its token. Raises InvalidMessage for a token that has ordered
    something else."""
    try:
        order(operation, user.get_username(), clean(reason), **fields)
    except IntegrityError:
        if operation.token is None:
            raise
        before: BulkOperation = BulkOperation.objects.get(
            token=operation.token, dry_run=operation.dry_run
        )
        if _ordered(before) != _ordered(operation):
            raise InvalidMessage(
                "This form has already ordered something else. Open it again."
            ) from None
        return before
    return operation


def _ordered(operation: BulkOperation) -> tuple[Any, ...]:
    options = json.loads(operation.options)
    named = [options.get(name) for name in ("delay", "rate", "by", "to", "edit")]
    return operation.kind, operation.selection, operation.reason, *named


def cancel(user: User, pk: int) -> None:
    """Stop an operation; what is done stays done. Raises NotPermitted, or InvalidMessage when it
    has ended."""
    operation = get(pk, user)
    if operation.kind in BulkKind.values:
        needed = PERMISSIONS[BulkKind(operation.kind)]
        require(user, needed)
        for topic in operation.actions.exclude(topic="").values_list("topic", flat=True):
            require(user, needed, topic=topic)
    require(user, "bulk_operate")
    with OperatorAction.recorded(
        "cancel bulk", user.get_username(), bulk_operation=operation, selection=operation.kind
    ) as action:
        if not BulkOperation.objects.filter(
            pk=pk, status__in=(BulkStatus.WAITING, BulkStatus.RUNNING)
        ).update(status=BulkStatus.CANCELLED, finished_at=timezone.now()):
            raise InvalidMessage(f"Bulk operation {pk} has ended already.")
        action.add(1)


def seen_by(user: User) -> QuerySet[BulkOperation]:
    """The operations that exist for this user: those on topics that the user may see. Operations on
    several topics are seen by who has ordered them."""
    rows: QuerySet[BulkOperation] = BulkOperation.objects.all()
    topics = permitted_topics(user)
    if topics is None:
        return rows
    actions = OperatorAction.objects.filter(bulk_operation=OuterRef("pk"))
    rows = rows.filter(Q(operator=user.get_username()) | Exists(actions.filter(topic__in=topics)))
    return rows.exclude(Exists(actions.exclude(topic="").exclude(topic__in=topics)))


def get(pk: int, user: User) -> BulkOperation:
    """Raises InvalidMessage when there is none for this user."""
    operation = seen_by(user).filter(pk=pk).first()
    if operation is None:
        raise InvalidMessage(f"There is no bulk operation {pk}.")
    return operation


# Progress


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Figures of one operation, as of now."""

    is_alive: bool
    """Whether it waits or runs, so that there is something to follow and to cancel."""
    is_untaken: bool
    """Whether it has waited so long that there seems to be no worker."""
    is_silent: bool
    """Whether the process that ran it has not written for a while."""
    waits_since: datetime
    """When it was ordered, or when a worker that ended has put it down."""
    changed: int
    """Messages that it has changed; of a dry run those that it would change."""
    left_out: int
    """Messages of the operation that were skipped."""
    skipped: Mapping[str, int]
    """Rows that were left as they are, by the reason in words; the most frequent first."""
    done: int
    """Messages of the operation that were changed or skipped."""
    total: int | None
    """None until a worker has counted."""
    percent: int
    took: float | None
    """Seconds since a worker took it, or until its end; None before."""
    rate: float | None
    """Messages per second on average; None until there is one."""
    left: float | None
    """Seconds that the rest takes at this rate; None when it is not known."""
    options: Mapping[str, Any]
    """delay, rate, by and to, when they were given."""
    words: str
    """The selection in words."""
    edit: ArgumentEdit | None
    """What becomes of one argument, as far as this version knows it."""


def progress(operation: BulkOperation) -> Progress:
    """The figures of a stored operation."""
    at = timezone.now()
    status = BulkStatus(operation.status)
    skipped: dict[str, int] = json.loads(operation.skipped)
    total = operation.total
    kind = BulkKind(operation.kind) if operation.kind in BulkKind.values else None
    is_of_waiting = kind is not None and kind.is_of_waiting
    # A dry run of a purge only counts.
    only_counts = operation.dry_run and kind is BulkKind.PURGE
    changed = (total or 0) if only_counts else operation.count
    left_out = sum(count for why, count in skipped.items() if why not in NOT_MEANT)
    done = changed + left_out
    done = done if total is None else min(done, total)
    took = None
    if operation.started_at is not None:
        took = max(0.0, ((operation.finished_at or at) - operation.started_at).total_seconds())
    rate = done / took if took and done and not operation.dry_run else None
    waits_since = max(operation.created_at, operation.alive_at or operation.created_at)
    runs = status is BulkStatus.RUNNING
    words, options = operation.selection, decoded(operation.options)
    edit = None
    with suppress(InvalidMessage):
        edit = edit_of(options)
    with suppress(InvalidMessage):  # a newer version may have written what this one does not know
        words = (WaitingSelection if is_of_waiting else Selection).decode(words).in_words()
    return Progress(
        is_alive=runs or status is BulkStatus.WAITING,
        is_untaken=status is BulkStatus.WAITING and at - waits_since > UNTAKEN_AFTER,
        is_silent=runs and at - waits_since > SILENT_AFTER,
        waits_since=waits_since,
        changed=changed,
        left_out=left_out,
        skipped=dict(sorted(skipped.items(), key=lambda pair: -pair[1])),
        done=done,
        total=total,
        percent=100 * done // total if total else 0,
        took=took,
        rate=rate,
        left=(total - done) / rate if runs and rate and total is not None else None,
        options={
            name: value
            for name, value in options.items()
            if value and name in ("delay", "rate", "by", "to")
        },
        words=words,
        edit=edit,
    )
