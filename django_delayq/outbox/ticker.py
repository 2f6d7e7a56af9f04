"""Writes the messages of recurring tasks, a few seconds before each tick."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import Error, connections, transaction

from ..core.conf import get_settings
from ..core.database import locked, reached, write_first
from ..core.exceptions import StoreError
from ..core.log import log_failure
from ..core.service import Service
from ..core.times import from_ms
from ..models import OutboxMessage, OutboxStatus, RecurringTask
from ..store.store import RedisStore
from ..tasks import registry
from ..tasks.builder import build
from ..tasks.recurrence import MISSED_AFTER_MS, TICK, Recurrence
from ..tasks.task import Call, Task
from . import outbox

logger = logging.getLogger("delayq.worker")

#: Ticks are written this far ahead. After half of it they are written again: so a round that fails
#: makes no message late.
AHEAD_MS = 10_000
#: A rule of other code is in force until nobody has written by it for so long.
TAKE_OVER_MS = 5_000
#: The row of a task that no code declares is deleted after so long.
FORGET_MS = 86_400_000
#: If ticks are written further ahead than this, Redis' clock has been set back.
SET_BACK_MS = 3_600_000


class Ticker(Service):
    """Each process that archives has one. Who comes first writes a tick; the row of its task is
    locked meanwhile.

    Of two rules for one task, as during a deploy, the one by which somebody writes stays in force.
    The other one begins where that one has ended, so no tick is lost and none comes twice.
    """

    name = "ticker"
    interval = 2.0

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._failing: set[str] = set()
        """Names of tasks of which no message can be made."""
        self.written = 0

    @property
    def figures(self) -> dict[str, Any]:
        """Messages written so far."""
        return {"written": self.written}

    def run_once(self) -> float:
        """Write the ticks of the next seconds. Raises StoreUnavailable and DatabaseUnavailable: it
        is tried again."""
        # While Redis is away the outbox takes the messages all the same.
        away = self._store.breaker.open
        self.write_ticks(outbox.redis_now_ms() if away else int(self._store.clock_ms()))
        return self.interval

    def write_ticks(self, now_ms: int) -> None:
        """Write the ticks that come soon after this instant, and those before it that are not yet
        written."""
        tasks = registry.recurring_tasks()
        with reached():
            rows = list(RecurringTask.objects.all())
            if missing := tasks.keys() - {row.task for row in rows}:
                rows += begin({name: tasks[name][1] for name in sorted(missing)}, now_ms)
            for row in rows:
                if row.task in tasks and _is_due(row, tasks[row.task][1], now_ms):
                    self._try_to_write(row.pk, *tasks[row.task], now_ms)
            forgotten = [
                row.pk for row in rows if row.task not in tasks and row.upto_ms < now_ms - FORGET_MS
            ]
            if forgotten:
                RecurringTask.objects.filter(
                    pk__in=forgotten, upto_ms__lt=now_ms - FORGET_MS, paused_at=None
                ).delete()

    def _try_to_write(
        self, pk: int, task: Task[Any, Any], recurrence: Recurrence, now_ms: int
    ) -> None:
        """Write the messages of one task. If none can be made, because its options contradict the
        settings or a hook fails, the other tasks must not suffer."""
        try:
            self._write(pk, task, recurrence, now_ms)
        except (Error, StoreError):
            raise
        except Exception as error:
            if task.name not in self._failing:
                self._failing.add(task.name)
                text = "%s: no message can be made of it, so its ticks wait; it is tried again"
                log_failure(logger, error, text, task.name)
        else:
            self._failing.discard(task.name)

    def _write(self, pk: int, task: Task[Any, Any], recurrence: Recurrence, now_ms: int) -> None:
        """Write the messages of one task and move its row, in one transaction."""
        connection = connections[get_settings().database]
        with transaction.atomic(using=connection.alias):
            write_first(connection, RecurringTask)
            row = locked(RecurringTask.objects.filter(pk=pk)).first()
            if row is None or not _is_due(row, recurrence, now_ms):
                return  # another process was quicker
            after_ms = row.upto_ms
            if after_ms > now_ms + SET_BACK_MS:
                logger.warning("%s: Redis' clock was set back; its ticks go on now", task.name)
                after_ms = now_ms
            ticks = [] if row.paused_at else recurrence.wanted(after_ms, now_ms, now_ms + AHEAD_MS)
            insert_ticks(task, ticks)
            row.rule, row.upto_ms = str(recurrence.rule), now_ms + AHEAD_MS
            row.last_tick_ms = max([row.last_tick_ms, *ticks])
            row.save(using=connection.alias, update_fields=["rule", "upto_ms", "last_tick_ms"])
        self.written += len(ticks)
        missed_before_ms = now_ms - MISSED_AFTER_MS
        if not row.paused_at and any(recurrence.rule.ticks(after_ms, missed_before_ms)):
            late = sum(tick <= missed_before_ms for tick in ticks)
            logger.warning(
                "%s: nobody wrote its ticks from %s on; by its policy %r %d of the missed ticks "
                "run now", task.name, from_ms(after_ms), recurrence.missed, late,
            )  # fmt: skip


def begin(recurrences: Mapping[str, Recurrence], now_ms: int) -> list[RecurringTask]:
    """The rows of tasks, by name, that may have none yet: their first ticks come after now."""
    rows = [
        RecurringTask(task=name, rule=str(recurrence.rule), upto_ms=now_ms)
        for name, recurrence in recurrences.items()
    ]
    RecurringTask.objects.bulk_create(rows, ignore_conflicts=True)
    return list(RecurringTask.objects.filter(task__in=recurrences))


def key_of(task: str, tick_ms: int) -> str:
    """The key of the message of a tick: a tick that is written twice has one message."""
    return f"{task}@{from_ms(tick_ms):%Y-%m-%dT%H:%M:%SZ}"


def _is_due(row: RecurringTask, recurrence: Recurrence, now_ms: int) -> bool:
    """Whether ticks are to be written by this rule."""
    if row.upto_ms > now_ms + SET_BACK_MS:
        return True
    if row.rule == str(recurrence.rule):
        return bool(row.upto_ms < now_ms + AHEAD_MS / 2)
    return bool(row.upto_ms < now_ms - TAKE_OVER_MS)


def insert_ticks(task: Task[Any, Any], ticks: Sequence[int]) -> None:
    """Write one durable message for each tick."""
    calls = []
    for tick_ms in ticks:
        tick = from_ms(tick_ms)
        options = task.options.changed(
            {
                "key": key_of(task.name, tick_ms),
                "on_duplicate": "keep",
                "durable": True,
                "due_at": tick,
                "headers": {TICK: tick.isoformat()},
            }
        )
        calls.append(Call(type(task)(task.definition, options), (), {}))
    now_us = outbox.redis_now_ms() * 1000
    rows = [
        outbox.new_row(item, now_us + index, OutboxStatus.WAITING)
        for index, item in enumerate(build(calls))
    ]
    OutboxMessage.objects.bulk_create(rows, ignore_conflicts=True)
