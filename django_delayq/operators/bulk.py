"""Bulk operations as operators order and cancel them. A worker runs them (bulk_runner.py)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone

from ..archive.selection import Selection
from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..models import ArchivedMessage, BulkKind, BulkOperation, BulkStatus, OperatorAction
from ..outbox.existing import check_existing
from .operations import User, clean, recorded, require

#: What each kind needs beside bulk_operate.
PERMISSIONS = {
    BulkKind.REPLAY: "replay_message",
    BulkKind.DISCARD: "discard_message",
    BulkKind.PURGE: "cancel_message",
}


def start(  # noqa: PLR0913 - keyword-only, and each of them is what an operator may say
    user: User,
    kind: str,
    selection: Selection,
    *,
    reason: str,
    dry_run: bool = False,
    delay: float = 0,
    rate: float | None = None,
    token: UUID | None = None,
) -> BulkOperation:
    """Store an operation; a worker that archives takes it up within seconds.

    replay and discard: dead letters among the selection, as of now. purge: what waits in the
    selection's topic. `delay` (seconds) and `rate` (messages per second) are those of replay().
    With a `token` the same order, or a dry run of it, is stored once, and returned when it comes
    again. Raises NotPermitted or InvalidMessage.
    """
    require(user, "bulk_operate", PERMISSIONS[kind_of(kind)])
    check(kind, selection, reason if not dry_run else "dry run", delay, rate)
    alias = get_settings().database
    newest = (
        ArchivedMessage.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first()
    )
    operation = BulkOperation(
        kind=kind,
        dry_run=dry_run,
        selection=selection.encode(),
        options=json.dumps({"delay": delay, "rate": rate}),
        operator=user.get_username()[:150],
        reason=clean(reason),
        cutoff=newest or 0,
        token=token,
    )
    try:
        _store(operation, selection, alias)
    except IntegrityError:
        if token is None:
            raise
        return _same_as_before(operation)
    return operation


def _same_as_before(operation: BulkOperation) -> BulkOperation:
    """What this token has ordered already. Raises InvalidMessage when that was something else."""
    before: BulkOperation = BulkOperation.objects.get(
        token=operation.token, dry_run=operation.dry_run
    )
    if _ordered(before) != _ordered(operation):
        raise InvalidMessage("This form has ordered something else before: open it again.")
    return before


def _ordered(operation: BulkOperation) -> tuple[str, str, str, Any, Any]:
    options = json.loads(operation.options)
    return operation.kind, operation.selection, operation.reason, options["delay"], options["rate"]


def _store(operation: BulkOperation, selection: Selection, alias: str) -> None:
    with transaction.atomic(using=alias):
        if not operation.dry_run:
            words = {
                "action": operation.kind,
                "reason": operation.reason,
                "selection": selection.in_words(),
            }
            operation.action = OperatorAction(operator=operation.operator, **words)
            operation.action.save(using=alias)
        operation.save(using=alias)


def cancel(user: User, pk: int) -> None:
    """Stop an operation; what is done stays done. Raises NotPermitted, or InvalidMessage when it
    has ended."""
    operation = get(pk)
    require(user, "bulk_operate", PERMISSIONS[kind_of(operation.kind)])
    with recorded(user, "cancel bulk", f"bulk operation {pk}: {operation.kind}"):
        alive = BulkOperation.objects.filter(
            pk=pk, status__in=(BulkStatus.WAITING, BulkStatus.RUNNING)
        )
        if not alive.update(status=BulkStatus.CANCELLED, finished_at=timezone.now()):
            raise InvalidMessage(f"Bulk operation {pk} has ended already.")


def get(pk: int) -> BulkOperation:
    """Raises InvalidMessage when there is none."""
    operation: BulkOperation | None = BulkOperation.objects.filter(pk=pk).first()
    if operation is None:
        raise InvalidMessage(f"There is no bulk operation {pk}.")
    return operation


def kind_of(kind: str) -> BulkKind:
    """The kind by its word. Raises InvalidMessage."""
    try:
        return BulkKind(kind)
    except ValueError:
        raise InvalidMessage(
            f"{kind!r} is not a bulk operation: use one of {', '.join(BulkKind.values)}."
        ) from None


def check(kind: str, selection: Selection, reason: str, delay: float, rate: float | None) -> None:
    """Raise InvalidMessage for an order that makes no sense."""
    if not reason.strip():
        raise InvalidMessage("Write a reason for those who look at it later.")
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
