"""What the workers run. Every run writes a line of the history first, so that it is known after a
kill -9, too."""

from __future__ import annotations

import time
from collections import Counter as PerCounter

from django.db.models import F

from django_delayq import Batch, current_message, delayed_task
from tests.chaos import history
from tests.chaos.models import Counter, Effect

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


@delayed_task(ttr=2, exactly_once=True, durable=True, batch=100, linger=0.05)
def add_many(messages: Batch[str]) -> None:
    """Adds 1 for each message."""
    for message in messages:
        history.write(message.id, message.attempt, time.time(), "start")
    for counter, many in PerCounter(message.args[0] for message in messages).items():
        Counter.objects.filter(name=counter).update(value=F("value") + many)
    time.sleep(HOLD)


def _run_order(number: int, version: int) -> None:
    _note()
    message = current_message()
    history.write(message.id, message.attempt, time.time(), f"order {number} {version}")


@delayed_task(ttr=2)
def run_order(number: int, version: int) -> None:
    """Which arguments it ran with."""
    _run_order(number, version)


@delayed_task(ttr=2, exactly_once=True)
def run_order_once(number: int, version: int) -> None:
    """The same, and a row for each time."""
    _run_order(number, version)
    Effect.objects.create(number=number, version=version)


@delayed_task(ttr=2, max_runtime=4)
def hang() -> None:
    """Never ends."""
    while True:
        time.sleep(60)
