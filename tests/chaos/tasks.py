"""What the workers run. Every run writes a line of the history first, so that it is known after a kill -9, too."""

from __future__ import annotations

import time

from django.db.models import F

from django_delayq import current_message, delayed_task

from . import history
from .models import Counter

#: Seconds for which a run holds its locks, so that a kill seldom finds nothing open.
HOLD = 0.005


def _note() -> None:
    message = current_message()
    history.write(message.id, message.attempt, time.time(), "start")


@delayed_task
def note(number: int) -> None:
    """Nothing but the line."""
    _note()


@delayed_task(ttr=2, exactly_once=True, durable=True)
def add(counter: str) -> None:
    """Adds 1: run twice, or half, it would be seen in the sum."""
    _note()
    Counter.objects.filter(name=counter).update(value=F("value") + 1)
    time.sleep(HOLD)
