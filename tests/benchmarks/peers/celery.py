"""Celery: eta messages, which its workers take into their memory."""

from __future__ import annotations

import os
from datetime import datetime, timezone

from celery import Celery

from tests.benchmarks.journal import note

app = Celery("bench", broker=os.environ["DELAYQ_BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="noop")
def noop(index: int, padding: str) -> None:
    """The body that all have."""
    note(index)


def enqueue(index: int, due: float, padding: str) -> None:
    """One message."""
    noop.apply_async((index, padding), eta=datetime.fromtimestamp(due, tz=timezone.utc))
