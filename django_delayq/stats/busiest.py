"""Keeps the names of the tasks with the most messages, where the statistics page would have to sum
up hundreds of thousands of rows to know them: each task has a row for each day."""

from __future__ import annotations

from datetime import datetime
from heapq import nlargest

from django.db import transaction
from django.db.models import Q

from ..core.conf import get_settings
from ..models import BusiestTask, TaskDay
from .history import MOST_TASKS, PERIODS, messages_of, period_begins

#: Names are kept when a period has more rows than that. The page sums up so many in 20 ms.
MANY_ROWS = 20_000


def keep_busiest(now: datetime) -> None:
    """Store the busiest tasks of each period that ends now. One query reads all of them. Raises
    django.db.Error."""
    since = {name: period_begins(name, now)[0].date() for name in PERIODS}
    rows = TaskDay.objects.filter(day__gte=min(since.values()))
    kept: list[BusiestTask] = []
    if rows[: MANY_ROWS + 1].count() > MANY_ROWS:
        sums = {f"of_{name}": messages_of(Q(day__gte=first)) for name, first in since.items()}
        tasks = rows.order_by().values("topic", "task").annotate(**sums)
        found = list(tasks.values_list("topic", "task", *sums))
        for at, name in enumerate(PERIODS, 2):
            most = nlargest(MOST_TASKS + 1, found, key=lambda row: row[at] or 0)
            kept += [
                BusiestTask(period=name, topic=row[0], task=row[1], messages=row[at])
                for row in most
                if row[at]
            ]
    with transaction.atomic(using=get_settings().database):
        BusiestTask.objects.all().delete()
        # Another process may store the same at the same moment.
        BusiestTask.objects.bulk_create(kept, ignore_conflicts=True)
