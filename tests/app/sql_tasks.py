"""Tasks of the SQL tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.models import F

from django_delayq import Reject, delayed_task
from django_delayq.core.conf import get_settings
from tests.app.models import Counter
from tests.app.tasks import seen

#: What `count` calls, by name, after it has counted.
then: dict[str, Callable[[], object]] = {}


@delayed_task(exactly_once=True, max_attempts=3, backoff=0)
def count(name: str = "runs", next_step: str = "") -> None:
    """Counts, in the transaction that says that it ran."""
    seen.append(connections[get_settings().database].in_atomic_block)
    counters = Counter.objects.using(get_settings().database)
    counters.get_or_create(name=name)
    counters.filter(name=name).update(value=F("value") + 1)
    then.get(next_step, lambda: None)()


@delayed_task(exactly_once=True)
def call(next_step: str) -> None:
    """Does only what a test says."""
    then[next_step]()


@delayed_task(exactly_once=True)
def hook() -> None:
    """Leaves something for the time after the commit."""
    transaction.on_commit(lambda: seen.append("after the commit"), using=get_settings().database)
    seen.append("in the task")


@delayed_task(max_attempts=1)
def fail(how: str) -> None:
    """Raises."""
    errors: dict[str, Any] = {
        "nul": ValueError("a\0b"),
        "long": ValueError("x" * 100_000),
        "unicode": ValueError("naïve 雪 🎈"),
        "reject": Reject("no such order"),
        "deep": None,
    }
    if how == "deep":
        _deep(150)
    raise errors[how]


def _deep(levels: int) -> None:
    if not levels:
        raise RuntimeError("at the bottom")
    _deeper(levels)


def _deeper(levels: int) -> None:
    _deep(levels - 1)
