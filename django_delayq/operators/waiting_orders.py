"""Orders bulk operations on waiting messages: cancel, shift, run now, move and edit. See the how-to
about waiting messages.

The calls store an operation as the pages do, and run it in this process. When this process dies a
worker goes on with it, or the same call of the command does.
"""

from __future__ import annotations

import secrets
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

from ..client.moving import check_not_in_transaction
from ..core.exceptions import InvalidMessage
from ..core.times import MAX_DELAY_MS
from ..models import BulkKind, BulkOperation, BulkStatus
from ..store import get_store
from ..tasks.argument_edit import ArgumentEdit
from ..tasks.registry import check_topic
from .bulk import order_once, progress
from .bulk_run import decoded, needed_for, stored_options
from .bulk_runner import BulkRunner
from .operations import User, check_reason, clean, require
from .topic_permission import options_of_order
from .waiting_selection import WaitingSelection

__all__ = ["ArgumentEdit", "WaitingChange", "WaitingSelection", "change_waiting"]

#: Seconds between two looks at an operation that another process runs.
LOOK_AGAIN = 0.5
#: Messages of a sample.
SAMPLE = 10


@dataclass(frozen=True, kw_only=True)
class WaitingChange:
    """The change of waiting messages. Raises InvalidMessage and UnknownTopic."""

    kind: str
    """cancel, shift, run now, move or edit."""
    by: timedelta = timedelta()
    """Of a shift: so much later, or, when it is negative, earlier; up to ten years. A message does
    not become due before the operation was ordered."""
    to: str = ""
    """Of a move: a topic that a task or DELAYQ["TOPICS"] declares."""
    edit: ArgumentEdit | None = None
    """Of an edit: what becomes of one argument of one task."""

    def __post_init__(self) -> None:
        if self.kind not in BulkKind.values or not BulkKind(self.kind).is_of_waiting:
            raise InvalidMessage(
                f"{self.kind!r} is not an operation on waiting messages: use cancel, shift, "
                "run now, move or edit."
            )
        if (self.kind == BulkKind.SHIFT) != bool(self.by):
            raise InvalidMessage("A shift, and nothing else, needs by: how much later or earlier.")
        if abs(self.by) > timedelta(milliseconds=MAX_DELAY_MS):
            raise InvalidMessage("by is at most ten years.")
        if (self.kind == BulkKind.MOVE) != bool(self.to):
            raise InvalidMessage("A move, and nothing else, needs to: the other topic.")
        if self.to:
            check_topic(self.to)
        if (self.kind == BulkKind.EDIT) != (self.edit is not None):
            raise InvalidMessage("An edit, and nothing else, needs edit: an ArgumentEdit.")

    @property
    def options(self) -> dict[str, Any]:
        """What a stored operation keeps of it, beside its kind."""
        values: dict[str, Any] = {"by": self.by.total_seconds(), "to": self.to}
        values |= {"edit": self.edit.encode()} if self.edit else {}
        return {name: value for name, value in values.items() if value}

    @property
    def words(self) -> str:
        """For people, also for those who may not see arguments."""
        if self.kind == BulkKind.SHIFT:
            return f"by {self.by}"
        return self.edit.in_words() if self.edit else f"to topic {self.to}" if self.to else ""


def check_selection(user: User, selection: WaitingSelection) -> None:
    """Raise InvalidMessage for a selection of everything, NotPermitted for one by an argument by
    somebody who may not see arguments, and UnknownTopic."""
    if selection.is_whole_topic and not selection.topic:
        raise InvalidMessage("Say which: by topic, task, key prefix, due time or argument.")
    if selection.argument or selection.topic:
        require(user, *(["view_payload"] if selection.argument else []), topic=selection.topic)
    if selection.topic:
        selection.topics()


def start_waiting(  # noqa: PLR0913 - keyword-only, and an operator may give each of them
    user: User,
    change: WaitingChange,
    selection: WaitingSelection,
    *,
    reason: str,
    dry_run: bool = False,
    token: UUID | None = None,
    asked: str = "",
) -> BulkOperation:
    """Store an operation; a worker that archives takes it up within seconds. It is about messages
    that wait then and were enqueued before this call.

    With a `token` the same order, or a dry run of it, is stored once, and returned when it comes
    again. `asked`: for order_alive(). Raises NotPermitted, InvalidMessage, UnknownTopic and
    StoreUnavailable.
    """
    needed = needed_for(change.kind)
    require(user, *needed, topic=selection.topic)
    selection = narrowed_to_task(selection, change)
    if change.to:
        require(user, *needed, topic=change.to)
    check_selection(user, selection)
    if change.to and change.to == selection.topic:
        raise InvalidMessage("A message is moved to another topic.")
    if not dry_run:
        check_reason(reason)
    options = {**change.options, **({"asked": asked} if asked else {}), **options_of_order(user)}
    operation = BulkOperation(
        kind=change.kind,
        dry_run=dry_run,
        selection=selection.encode(),
        options=stored_options(options),
        cutoff=round(get_store().clock_ms() * 1000),
        token=token,
    )
    words = "" if selection.is_whole_topic else selection.narrowed(topic="").in_words()
    words = ", ".join(filter(None, (words, change.words)))
    return order_once(operation, user, clean(reason), topic=selection.topic, selection=words)


def narrowed_to_task(selection: WaitingSelection, change: WaitingChange) -> WaitingSelection:
    """An edit is about messages of its task only. Raises InvalidMessage for those of another."""
    if change.edit is None:
        return selection
    if selection.task not in ("", change.edit.task):
        raise InvalidMessage("The edit is about another task than the messages.")
    return selection.narrowed(task=change.edit.task)


def order_alive(change: WaitingChange, asked: str) -> BulkOperation | None:
    """The operation that was ordered in the same words before and has not ended."""
    alive = BulkOperation.objects.filter(
        kind=change.kind,
        dry_run=False,
        in_place=False,
        status__in=(BulkStatus.WAITING, BulkStatus.RUNNING),
    )
    operation: BulkOperation
    for operation in alive.order_by("pk"):
        options = decoded(operation.options)
        kept = {name: options[name] for name in ("by", "to", "edit") if name in options}
        if asked and options.get("asked") == asked and kept == change.options:
            return operation
    return None


def run_to_end(
    operation: BulkOperation, report: Callable[[BulkOperation], object] = lambda so_far: None
) -> BulkOperation:
    """Run a stored operation here, or watch it while another process runs it, until it has ended.
    `report` is called now and then. Raises what the store and the database do; the operation waits
    then for a worker, or for this call once more."""
    runner = BulkRunner(get_store(), f"{socket.gethostname()}:{secrets.token_hex(2)}")

    def refresh() -> None:
        operation.refresh_from_db()
        report(operation)

    try:
        while True:
            runner.run_this(operation.pk, refresh)
            refresh()
            if not progress(operation).is_alive:
                return operation
            look_again()
    except KeyboardInterrupt:
        BulkOperation.objects.filter(pk=operation.pk, worker=runner.worker).update(
            status=BulkStatus.WAITING, worker="", alive_at=None
        )
        raise


def look_again() -> None:
    """Pause until the next look at an operation that another process runs."""
    Event().wait(LOOK_AGAIN)


class _ProjectCode:
    """Code of the project, which may do everything."""

    is_outside_pages = True

    def __init__(self, name: str) -> None:
        self._name = name

    def has_perm(self, permission: str) -> bool:
        return True

    def get_username(self) -> str:
        return self._name


@dataclass(frozen=True, kw_only=True)
class WaitingChanged:
    """What change_waiting() has done."""

    operation: BulkOperation
    """The stored operation; its messages are `operation.messages`."""
    count: int
    """Messages that were changed; of a dry run those that would be."""
    skipped: Counter[str]
    """How many messages were left as they are, by the reason in words."""


def change_waiting(  # noqa: PLR0913 - keyword-only, and each of them is what an operator may say
    kind: str,
    selection: WaitingSelection,
    *,
    by: timedelta = timedelta(),
    to: str = "",
    edit: ArgumentEdit | None = None,
    reason: str = "",
    operator: str = "",
    dry_run: bool = False,
) -> WaitingChanged:
    """Cancel, shift, run now, move or edit all waiting messages that fit, in Redis and in the
    outbox.

    `kind` is "cancel", "shift", "run now", "move" or "edit". A message that starts or changes
    meanwhile is skipped, and so is one that is enqueued after this call. A message is changed at
    most once, also after a kill: then a worker goes on. `by` (a shift): so much later, or earlier
    when it is negative. `to` (a move): a topic that is declared. `edit` (an edit): what becomes of
    one argument. `reason` is required, except for a `dry_run`, which makes the same checks and
    changes nothing; `operator` is for the record.

    Raises InvalidMessage (also when it failed or was cancelled), UnknownTopic, StoreUnavailable.
    Call it outside a transaction.
    """
    change = WaitingChange(kind=kind, by=by, to=to, edit=edit)
    check_not_in_transaction()
    operation = start_waiting(
        _ProjectCode(operator), change, selection, reason=reason, dry_run=dry_run
    )
    ended = run_to_end(operation)
    if ended.status != BulkStatus.DONE:
        raise InvalidMessage(f"Operation {ended.pk} is {ended.status}. {ended.error}".strip())
    return WaitingChanged(
        operation=ended, count=ended.count, skipped=Counter(decoded(ended.skipped))
    )
