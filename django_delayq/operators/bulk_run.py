"""Runs one bulk operation: goes through the dead letters of its selection, or empties a topic, in
batches that each commit with how far it is."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import Error, connections, transaction
from django.db.models import F
from django.utils import timezone

from ..archive.selection import Rows, Selection
from ..client import topics
from ..core.conf import get_settings
from ..core.exceptions import DelayQError, InvalidMessage, NotPermitted
from ..core.times import duration_ms, epoch_us
from ..models import (
    ArchivedMessage,
    BulkKind,
    BulkMessage,
    BulkOperation,
    BulkStatus,
    Final,
    OperatorAction,
    OutboxMessage,
    OutboxStatus,
)
from ..outbox.existing import check_existing
from ..tasks.argument_edit import ArgumentEdit
from .replayer import Edit, Replayer
from .topic_permission import topics_of_order
from .walk import PAGE, Walk

#: What each kind needs beside bulk_operate.
PERMISSIONS = {
    BulkKind.REPLAY: "replay_message",
    BulkKind.DISCARD: "discard_message",
    BulkKind.PURGE: "cancel_message",
    BulkKind.CANCEL: "cancel_message",
    BulkKind.SHIFT: "cancel_message",
    BulkKind.RUN_NOW: "cancel_message",
    BulkKind.MOVE: "cancel_message",
    BulkKind.EDIT: "edit_message",
}
#: Dead letters that the list of an operation has at most. The figures count all.
MOST_LISTED = 100_000
#: Rows of a dry run whose ids it remembers.
FIRST = 10
#: How long the list of an operation is kept after its end.
KEPT = timedelta(days=30)
#: Seconds that a purge waits for the archiver before it looks again.
FULL_STREAM_PAUSE = 5.0

#: Fields whose values are only for those who may see what messages carry.
_CONTENTS = re.compile(r"WHERE.*\b(body|headers|history|error_message|traceback)\b")


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """What replay() or discard() has done so far."""

    action: OperatorAction
    """The record of it. Its finished_at is null until the end."""
    count: int
    """Messages that are replayed, or discarded."""
    skipped: Counter[str]
    """How many rows of the selection were left as they are, by the reason in words."""


class Stopped(DelayQError):
    """The bulk operation was cancelled, or another process runs it. What was done before stays."""


class BulkRun:
    """One process at one operation. Writes how far it is, in the transactions that change the
    messages. Every write checks that the operation is still ours: else it raises Stopped, and the
    transaction is undone."""

    def __init__(
        self,
        operation: BulkOperation,
        rest: Callable[..., object] = lambda seconds, least=0.0: None,
    ) -> None:
        self.operation = operation
        self.alias = get_settings().database
        self._action = operation.action
        self._ours = BulkOperation.objects.filter(
            pk=operation.pk, status=BulkStatus.RUNNING, worker=operation.worker
        )
        # Somebody may have cancelled it. Who takes it over writes another name.
        self._in_hand = BulkOperation.objects.filter(pk=operation.pk, worker=operation.worker)
        self._rest = rest
        self._began_at = time.monotonic()
        self._skipped_before = Counter(decoded(operation.skipped))
        self._listed: int | None = None

    def write(self, **changes: Any) -> None:
        """Store changes of the operation, and that this process is alive. Raises Stopped."""
        if not self._ours.update(alive_at=timezone.now(), **changes):
            raise Stopped

    def rest(self) -> None:
        """Pause between two transactions. Raises Stopped."""
        self._rest(time.monotonic() - self._began_at)
        self._began_at = time.monotonic()

    def wait(self) -> None:
        """Pause until another process has done something. Raises Stopped."""
        self.write()
        self._rest(0.0, least=FULL_STREAM_PAUSE)

    def await_archiver(self, topic: str) -> None:
        """Pause until the archiver has caught up: a full stream would hold the topic. Raises
        Stopped."""
        while topics.topic_stats(topic).finished > get_settings().finished_limit // 2:
            self.wait()

    def hold(self) -> None:
        """Begin a transaction that notes what Redis has done already. Raises Stopped when another
        process has taken over."""
        if not self._in_hand.update(alive_at=timezone.now()):
            raise Stopped

    def enter(
        self, count: int, position: int, skipped: Counter[str], *, is_done: bool = False
    ) -> None:
        """Before the commit: `count` more messages are changed, and all rows up to `position` are
        dealt with. `is_done`: also when the operation was cancelled, because Redis has changed
        them."""
        if self._action:
            self._action.add(count)
        changes = {
            "count": F("count") + count,
            "position": position,
            "skipped": json.dumps(self._skipped_before + skipped),
        }
        if is_done:
            self._in_hand.update(**changes)
        else:
            self.write(**changes)

    def list_rows(self, rows: Sequence[Any], left_out: Mapping[int, str]) -> None:
        """Before the commit: write down what has become of these rows of the archive, as long as
        the list is not too long."""
        if self._listed is None:
            self._listed = self.operation.messages.count()
        room = max(0, MOST_LISTED - self._listed)
        self._listed += min(room, len(rows))
        BulkMessage.objects.bulk_create(
            BulkMessage(
                operation=self.operation,
                topic=row.topic,
                message_id=row.message_id,
                enqueued_at_us=epoch_us(row.enqueued_at),
                task=row.task,
                key=row.key,
                due_at_ms=epoch_us(row.due_at) // 1000,
                to_due_at_ms=epoch_us(row.due_at) // 1000,
                skipped=left_out.get(row.pk, ""),
            )
            for row in rows[:room]
        )

    def purged(self, count: int) -> None:
        """Count messages that Redis has ended, also when the operation is cancelled."""
        with transaction.atomic(using=self.alias):
            if self._action:
                self._action.add(count)
            BulkOperation.objects.filter(pk=self.operation.pk).update(count=F("count") + count)

    def counted(self, total: int) -> None:
        """Store how many messages it is about."""
        self.operation.total = total
        self.write(total=total)

    def close(self, skipped: Counter[str]) -> None:
        """Store that it has come to its end."""
        now = timezone.now()
        with transaction.atomic(using=self.alias):
            self.write(
                status=BulkStatus.DONE,
                finished_at=now,
                skipped=json.dumps(self._skipped_before + skipped),
                error="",
            )
            if self._action:
                self._action.finish(now)

    def fail(self, error: BaseException) -> None:
        """Store that it cannot go on."""
        status = BulkStatus.FAILED if isinstance(error, Exception) else BulkStatus.CANCELLED
        with suppress(Error):  # the database itself may be away
            self._ours.update(
                status=status, finished_at=timezone.now(), error=error_words(error)[:2_000]
            )

    def put_down(self, error: str = "") -> None:
        """Leave it to the next worker: at once, or with an error after a while."""
        with suppress(Error):  # the database may be away: then another worker takes it over
            self._ours.update(
                status=BulkStatus.WAITING,
                worker="",
                error=error,
                alive_at=timezone.now() if error else None,
            )


def needed_for(kind: str, *, edits: bool = False) -> tuple[str, ...]:
    """The permissions for an operation of this kind. `edits`: with an ArgumentEdit."""
    more = ("edit_message", "view_payload") if edits or kind == BulkKind.EDIT else ()
    return tuple(dict.fromkeys(("bulk_operate", PERMISSIONS[BulkKind(kind)], *more)))


def edit_of(options: Mapping[str, Any]) -> ArgumentEdit | None:
    """The edit that the options of an operation have. Raises InvalidMessage."""
    return ArgumentEdit.decode(options["edit"]) if options.get("edit") else None


# Ways to run an operation


def run_stored(run: BulkRun) -> None:
    """Run an operation on dead letters, or a purge, that a page has ordered, or go on where another
    worker has left it. Raises Stopped, and InvalidMessage for what this version does not know."""
    operation = run.operation
    if operation.kind not in BulkKind.values:
        raise InvalidMessage(f"This version does not know the bulk operation {operation.kind!r}.")
    selection = permitted_selection(operation)
    if operation.kind == BulkKind.PURGE:
        _purge(run)
        return
    rows = selection.rows().filter(state=Final.DEAD).order_by("pk")
    if operation.total is None:
        forget_old_lists()
        counting = Walk(rows, last=operation.cutoff)
        counting.on_page = run.write
        total = 0
        for total, _ in enumerate(counting.candidates(), 1):
            if total % PAGE == 0:
                run.rest()
        run.counted(total)
    walk = Walk(rows, after=operation.position, last=operation.cutoff)
    walk.on_page = run.write
    _change_all(run, walk, run.rest, edit_of(decoded(operation.options)))


def run_in_place(  # noqa: PLR0913 - keyword-only: the options of both kinds
    kind: str,
    rows: Rows,
    *,
    by: str,
    reason: str,
    delay_ms: int = 0,
    rate: float | None = None,
    edit: Edit | ArgumentEdit | None = None,
    force: bool = False,
    limit: int | None = None,
    progress: Callable[[Replayed], object] | None = None,
    **fields: Any,
) -> Replayed:
    """Order an operation on these rows, and run it here. `fields` are those of its OperatorAction,
    which else describes the rows. `progress` is called first and after each transaction.

    When an exception says that nothing was changed, no record stays.
    """
    walk = Walk(rows, force=force, limit=limit)
    if not fields:
        words = [_in_words(rows), "force" if force else "", f"limit {limit:,}" if limit else ""]
        words += [edit.in_words()] if isinstance(edit, ArgumentEdit) else []
        fields = {"selection": ", ".join(filter(None, words))}
    operation = BulkOperation(
        kind=kind,
        selection=fields["selection"][:2_000],
        options=json.dumps({"delay": delay_ms / 1000, "rate": rate}),
        cutoff=walk.last,
        **_begun_here(),
    )
    action = order(operation, by, reason, **fields)
    assert action is not None
    run = BulkRun(operation)
    walk.on_page = run.write

    def so_far() -> Replayed:
        action.count = walk.count
        return Replayed(action=action, count=walk.count, skipped=walk.skipped.copy())

    try:
        _change_all(run, walk, lambda: progress(so_far()) if progress else None, edit)
    except BaseException as error:
        run.fail(error)
        if isinstance(error, Exception):
            with suppress(Error):  # the database itself may be away
                if OperatorAction.objects.filter(pk=action.pk, count=0).delete()[0]:
                    operation.delete(using=run.alias)
        raise
    action.refresh_from_db(using=run.alias, fields=["finished_at"])
    return so_far()


def foresee_in_place(
    kind: str,
    walk: Walk,
    *,
    edit: Edit | ArgumentEdit | None = None,
    progress: Callable[[], object] = lambda: None,
) -> None:
    """A dry run on the rows of this walk, which counts. It leaves nothing behind."""
    operation = BulkOperation(kind=kind, dry_run=True, cutoff=walk.last, **_begun_here())
    order(operation, "", "")
    run = BulkRun(operation)
    walk.on_page = run.write
    try:
        _change_all(run, walk, progress, edit)
    finally:
        operation.delete(using=run.alias)


def purge_in_place(topic: str, reason: str) -> int:
    """Order a purge, and run it here. Returns how many messages it has cancelled."""
    operation = BulkOperation(
        kind=BulkKind.PURGE,
        selection=Selection(topic=check_existing(topic)).encode(),
        **_begun_here(),
    )
    order(operation, "", reason.replace("\0", " "), topic=topic)
    run, done = BulkRun(operation), 0
    try:
        for count in topics.purge_batches(topic, reason):
            run.purged(count)
            done += count
            run.write()
    except BaseException as error:
        run.fail(error)
        raise
    run.counted(done)
    run.close(Counter())
    return done


def _begun_here() -> dict[str, Any]:
    """Fields of an operation that this process orders and runs."""
    now = timezone.now()
    return {
        "in_place": True,
        "status": BulkStatus.RUNNING,
        "worker": f"{socket.gethostname()}:{os.getpid()}"[:200],
        "started_at": now,
        "alive_at": now,
    }


def order(operation: BulkOperation, by: str, reason: str, **fields: Any) -> OperatorAction | None:
    """Store an operation and, unless it is a dry run, the action that orders it, in one
    transaction."""
    alias = get_settings().database
    operation.operator, operation.reason = by[:150], reason
    with transaction.atomic(using=alias):
        operation.save(using=alias)
        if operation.dry_run:
            return None
        return OperatorAction.new(operation.kind, by, reason, bulk_operation=operation, **fields)


def _change_all(
    run: BulkRun,
    walk: Walk,
    after_batch: Callable[[], object],
    edit: Edit | ArgumentEdit | None = None,
) -> None:
    """Change every batch in a transaction of its own, which also counts it in the operation."""
    change: Callable[[Sequence[Any]], int] = len if run.operation.dry_run else walk.discard
    if run.operation.kind != BulkKind.DISCARD:
        options = decoded(run.operation.options)
        replayer = Replayer(walk, duration_ms(options.get("delay", 0)), options.get("rate"), edit)
        # A rate goes on from when the first worker began.
        replayer.began_ms = int(options.setdefault("began_ms", replayer.began_ms))
        replayer.sent_before = run.operation.count
        run.write(options=stored_options(options))
        change = replayer.foresee if run.operation.dry_run else replayer.send
    after_batch()
    for pks in walk.batches():
        with transaction.atomic(using=run.alias):
            # A write comes first: on SQLite, which has no row locks, a transaction that reads first
            # may not write afterwards.
            run.write()
            rows = walk.lock(pks)
            count = change(rows)
            if room := FIRST - len(walk.first):
                changed = (row.pk for row in rows if row.pk not in walk.left_out)
                walk.first += islice(changed, room)
            if not run.operation.in_place:
                run.list_rows(rows, walk.left_out)
            run.enter(count, walk.position, walk.skipped)
        walk.count += count
        after_batch()
    run.close(walk.skipped)


def _purge(run: BulkRun) -> None:
    """Cancel as many messages as waited in the topic, in Redis and in the outbox, when the first
    worker took the operation: those that are due first. A kill between a batch of 500 and its count
    leaves that batch uncounted."""
    operation = run.operation
    topic = Selection.decode(operation.selection).topic
    if operation.total is None:
        waiting = OutboxMessage.objects.filter(topic=topic, status=OutboxStatus.WAITING).count()
        stats = topics.topic_stats(topic)
        run.counted(stats.delayed + stats.backlog + waiting)
    left = 0 if operation.dry_run else (operation.total or 0) - operation.count
    if left > 0:
        for count in topics.purge_batches(topic, operation.reason[:200], left):
            run.purged(count)
            run.rest()
            run.await_archiver(topic)
            run.write()  # before the next batch: the operation may be cancelled, or another's
    run.close(Counter())


def forget_old_lists() -> None:
    """Delete the lists of operations that ended long ago."""
    old = BulkOperation.objects.filter(finished_at__lt=timezone.now() - KEPT)
    for pk in old.filter(messages__isnull=False).values_list("pk", flat=True).distinct():
        rows = BulkMessage.objects.filter(operation=pk)
        while pks := list(rows.values_list("pk", flat=True)[:10_000]):
            rows.filter(pk__lte=max(pks), pk__in=pks).delete()


def permitted_selection(operation: BulkOperation) -> Selection:
    """The selection of an operation on dead letters, or of a purge, without the topics on which who
    ordered it may not do this now. Raises NotPermitted when nothing is left of it."""
    selection = Selection.decode(operation.selection)
    options = decoded(operation.options)
    needed = needed_for(operation.kind, edits="edit" in options)
    topics = topics_of_order(options, *needed)
    if topics is None:
        return selection
    if not topics or (selection.topic and selection.topic not in topics):
        raise NotPermitted(f"{operation.operator} may not do this any more.")
    return selection.narrowed(topics=tuple(sorted(topics)))


# Words


def stored_options(options: Mapping[str, Any]) -> str:
    """The options of an operation, in which the texts of people stand as they are: somebody may
    have to erase them."""
    return json.dumps(options, ensure_ascii=False, separators=(",", ":"))


def decoded(text: str) -> dict[str, Any]:
    """A JSON object that we have stored. Anything else counts as an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def error_words(error: BaseException) -> str:
    """The error in words that everybody may read. The text of a database is left out: it may quote
    a row."""
    if isinstance(error, DelayQError):
        return f"{type(error).__name__}: {error}"
    if not isinstance(error, Exception):
        return f"It was interrupted ({type(error).__name__})."
    return f"{type(error).__name__} (see the log)"


def _in_words(rows: Rows) -> str:
    """The condition, much as the database reads it."""
    try:
        sql, values = rows.order_by().values("pk").query.get_compiler(rows.db).as_sql()
    except EmptyResultSet:
        return "nothing"
    if _CONTENTS.search(sql):  # those who may not see contents can read these words
        return "a condition on what messages carry"
    table = connections[rows.db].ops.quote_name(ArchivedMessage._meta.db_table)
    return (sql % tuple(values)).replace(f"{table}.", "").partition(" WHERE ")[2] or "everything"
