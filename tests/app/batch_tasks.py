"""Batch tasks of the tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models import F

from django_delayq import Batch, delayed_task
from django_delayq.core.conf import get_settings
from tests.app.models import Counter

#: The arguments of each call, in their order.
calls: list[list[Any]] = []
#: What a call does after it has noted its messages.
then: list[Callable[[Batch[Any]], object]] = []


def note(messages: Batch[Any]) -> None:
    calls.append([message.args[0] for message in messages])
    for step in then:
        step(messages)


@delayed_task(topic="gathers", batch=500, linger=0.05, max_attempts=2, backoff=0)
def gather(messages: Batch[int]) -> None:
    note(messages)


@delayed_task(topic="gathers-async", batch=500, linger=timedelta(milliseconds=20), max_runtime=1)
async def gather_async(messages: Batch[int]) -> None:
    await asyncio.sleep(0)
    note(messages)
    while -1 in calls[-1]:
        await asyncio.sleep(0.01)


@delayed_task(topic="gathers", batch=3, linger=20, result=True)
def gather_few(messages: Batch[int]) -> None:
    note(messages)
    for message in messages:
        message.keep_result(message.args[0] * 2)


@delayed_task(topic="gathers-once", batch=500, exactly_once=True, max_attempts=1)
def count_many(messages: Batch[str]) -> None:
    """Counts, in the transaction that says that it ran."""
    counters = Counter.objects.using(get_settings().database)
    for message in messages:
        (name,) = message.args
        counters.get_or_create(name=name)
        counters.filter(name=name).update(value=F("value") + 1)
    note(messages)
