"""Recurring tasks as people see them, and what people do to them: pause, resume, run now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.utils import timezone

from ..client.decorator import DelayedTask
from ..client.handle import Handle
from ..core.conf import get_settings
from ..core.database import write_first
from ..core.exceptions import InvalidMessage
from ..core.message import key_id
from ..core.times import from_ms
from ..models import ArchivedMessage, OperatorAction, RecurringTask
from ..outbox import outbox, ticker
from ..store import get_store
from ..tasks import registry
from ..tasks.naming import shown
from ..tasks.recurrence import TICK, Recurrence, Rule
from ..tasks.task import Task
from .operations import User, check_reason, clean, require
from .topic_permission import check_permitted, permitted_topics

#: Seconds in which a second click on the button means the same.
DOUBLE_CLICK = 5.0
#: Next ticks that are shown.
NEXT = 3
#: A task whose ticks are not even written up to so long ago has nobody who writes them.
SILENT_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class TickRun:
    """What has become of the message of one tick."""

    tick: datetime
    topic: str
    message_id: str
    """32 hexadecimal digits."""
    state: str = ""
    """Empty: neither Redis nor the archive knows it (yet)."""
    attempt: int = 0
    finished_at: datetime | None = None
    row: int | None = None
    """The row of the archive; None for a live one."""


@dataclass(frozen=True, kw_only=True)
class RecurringStatus:
    """A recurring task: its rule, its next ticks, its last run."""

    task: str
    topic: str
    """Empty when no code here declares the task as recurring."""
    rule: str
    """The rule in force."""
    declared: str
    """The rule that the code here declares; empty for none."""
    missed: str
    """The policy for missed ticks; empty when no code here declares it."""
    paused: RecurringTask | None
    """The row with the pause, when it is paused."""
    silent: bool
    """Whether its ticks are not written: no process runs the archiver, or none has its code."""
    next_ticks: Sequence[datetime]
    """Empty while it is paused."""
    last: TickRun | None
    """Of the newest tick that is due; None when no tick has come yet."""


def recurring_statuses() -> list[RecurringStatus]:
    """All recurring tasks that code declares here or that have a row, by name. Two queries and one
    round trip to Redis. Raises StoreUnavailable."""
    now_ms = outbox.redis_now_ms()
    tasks = registry.recurring_tasks()
    rows = {row.task: row for row in RecurringTask.objects.all()}
    declared = [(tasks[name][0], row) for name, row in rows.items() if name in tasks]
    runs = _last_runs(declared, now_ms)
    return [
        _status(name, tasks.get(name), rows.get(name), runs.get(name), now_ms)
        for name in sorted({*tasks, *rows})
    ]


def silent_tasks() -> list[str]:
    """The recurring tasks that are declared here, and whose ticks no process writes."""
    since_ms = outbox.redis_now_ms() - SILENT_MS
    written = set(
        RecurringTask.objects.filter(upto_ms__gte=since_ms).values_list("task", flat=True)
    )
    return sorted(registry.recurring_tasks().keys() - written)


def pause_recurring(user: User, name: str, *, reason: str) -> None:
    """Let no tick of a task get a message from now on. Ticks during the pause are not missed: they
    never run. Raises InvalidMessage for an unknown task, and without a reason."""
    require(user, "pause_topic")
    check_reason(reason)
    _check_task(user, name, "pause_topic")
    with _changed(user, "pause", name, reason) as row:
        row.paused_at = timezone.now()
        row.paused_by, row.pause_reason = user.get_username()[:150], clean(reason)


def resume_recurring(user: User, name: str, *, reason: str = "") -> None:
    """Let a paused task go on with its next tick. Raises InvalidMessage for an unknown task, and
    for one that is not paused."""
    require(user, "pause_topic")
    _check_task(user, name, "pause_topic")
    with _changed(user, "resume", name, reason) as row:
        if row.paused_at is None:
            raise InvalidMessage(f"{name} is not paused.")
        row.paused_at, row.paused_by, row.pause_reason = None, "", ""
        # A tick that was written just before the pause is not written again.
        row.upto_ms = max(outbox.redis_now_ms(), row.last_tick_ms)


def run_recurring_now(user: User, name: str, *, reason: str = "") -> Handle:
    """Run a recurring task once, now; its ticks stay as they are. Raises InvalidMessage for a task
    that code does not declare as recurring here, and when it was run by hand a moment ago or such a
    run goes on: a double click makes one message."""
    require(user, "cancel_message")
    _check_task(user, name, "cancel_message")
    task, _ = registry.recurring_tasks().get(name, (None, None))
    if task is None:
        raise InvalidMessage(_unknown(name))
    tick = from_ms(outbox.redis_now_ms())
    with OperatorAction.recorded(
        "run now",
        user.get_username(),
        clean(reason),
        topic=task.options.topic,
        selection=f"recurring task {name}",
    ) as action:
        delayed = DelayedTask[..., Any](task.definition, task.options)
        once = delayed.using(
            key=f"run now:{name}", on_duplicate="keep", window=DOUBLE_CLICK,
            durable=True, delay=0, headers={TICK: tick.isoformat()},
        )  # fmt: skip
        handle = once.enqueue()
        if handle.outcome == "kept":
            raise InvalidMessage(
                f"{name} was run by hand a moment ago, or such a run goes on: see message "
                f"{handle.id}."
            )
        OperatorAction.objects.filter(pk=action.pk).update(count=1, message_id=handle.id)
    return handle


@contextmanager
def _changed(user: User, action: str, name: str, reason: str) -> Iterator[RecurringTask]:
    """The row of a task, locked; stored with the record of the action."""
    alias = get_settings().database
    words = f"recurring task {name}"
    with (
        OperatorAction.recorded(
            action, user.get_username(), clean(reason), selection=words
        ) as record,
        transaction.atomic(using=alias),
    ):
        write_first(connections[alias], RecurringTask)
        rows = RecurringTask.objects.select_for_update().filter(task=name)
        _, recurrence = registry.recurring_tasks().get(name, (None, None))
        row = rows.first()
        if row is None and recurrence is not None:
            ticker.begin({name: recurrence}, outbox.redis_now_ms())
            row = rows.first()
        if row is None:
            raise InvalidMessage(_unknown(name))
        yield row
        row.save(using=alias)
        record.add(1)


def _check_task(user: User, name: str, action: str) -> None:
    """Raise InvalidMessage for a task whose topic does not exist for the user, or NotPermitted."""
    topics = permitted_topics(user)
    if topics is None:
        return
    task, _ = registry.recurring_tasks().get(name, (None, None))
    if task is None or task.options.topic not in topics:
        raise InvalidMessage(f"No recurring task is named {name!r:.250}.")
    check_permitted(user, task.options.topic, action)


def _unknown(name: str) -> str:
    names = ", ".join(sorted(registry.recurring_tasks())) or "none"
    return f"No recurring task is named {name!r:.250}. Those that code declares here: {names}."


def _status(
    name: str,
    known: tuple[Task[Any, Any], Recurrence] | None,
    row: RecurringTask | None,
    last: TickRun | None,
    now_ms: int,
) -> RecurringStatus:
    task, recurrence = known or (None, None)
    declared = str(recurrence.rule) if recurrence else ""
    rule = row.rule if row else declared
    paused = row is not None and row.paused_at is not None
    ticks = () if paused else islice(Rule.parse(rule).ticks(now_ms), NEXT)
    return RecurringStatus(
        task=name,
        topic=task.options.topic if task else "",
        rule=rule,
        declared=declared,
        missed=recurrence.missed if recurrence else "",
        paused=row if paused else None,
        silent=row is None or row.upto_ms < now_ms - SILENT_MS,
        next_ticks=[from_ms(tick_ms) for tick_ms in ticks],
        last=last,
    )


def _last_runs(
    declared: Sequence[tuple[Task[Any, Any], RecurringTask]], now_ms: int
) -> dict[str, TickRun]:
    """What has become of the newest due tick of each task."""
    ids: dict[bytes, tuple[Task[Any, Any], int]] = {}
    for task, row in declared:
        if tick_ms := _newest_due(row, now_ms):
            identity = key_id(task.options.topic, ticker.key_of(task.name, tick_ms))
            ids[identity] = task, tick_ms
    known: dict[bytes, dict[str, Any]] = {}
    places = [(task.options.topic, identity) for identity, (task, _) in ids.items()]
    for partition, found in get_store().find_many(places):
        message = shown(partition, found)
        known[found.id] = {"state": message.state.value, "attempt": message.attempt}
    for ended in ArchivedMessage.objects.filter(message_id__in=[UUID(bytes=i) for i in ids]):
        known[ended.message_id.bytes] = {
            "state": ended.state,
            "attempt": ended.attempts,
            "finished_at": ended.finished_at,
            "row": ended.pk,
        }
    return {
        task.name: TickRun(
            tick=from_ms(tick_ms),
            topic=task.options.topic,
            message_id=identity.hex(),
            **known.get(identity, {}),
        )
        for identity, (task, tick_ms) in ids.items()
    }


def _newest_due(row: RecurringTask, now_ms: int) -> int:
    """The newest tick of a row that is due. Ticks are written a little ahead: of a rule of seconds
    the last one that was written always lies in the future."""
    if row.last_tick_ms <= now_ms:
        return row.last_tick_ms
    due = list(Rule.parse(row.rule).ticks(row.last_tick_ms - SILENT_MS, now_ms))
    return due[-1] if due else 0
