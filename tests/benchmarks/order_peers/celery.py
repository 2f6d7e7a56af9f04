"""Celery."""

from __future__ import annotations

import os
from collections.abc import Iterable

from celery import Celery

from tests.benchmarks.order_peers import closing

app = Celery("bench", broker=os.environ["DELAYQ_BENCH_REDIS"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
close = app.task(name="close")(closing.close)


def enqueue(ids: Iterable[int]) -> None:
    """One message for each."""
    for order_id in ids:
        close.delay(order_id)
