"""What a worker says in its heartbeat of that which it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from ..core.message import task_code_of
from ..store.lease import Lease
from ..tasks import registry

#: The heartbeat of a worker with thousands of coroutines must stay small: it names so many tasks,
#: and so many messages, those that have run for longest.
MOST_TASKS, MOST_BEGUN = 20, 100


def described_runs(runs: Sequence[tuple[Lease, threading.Thread | None]]) -> dict[str, Any]:
    """For the heartbeat. `tasks`: topic, task, how many, when the first of them began (ms), the
    most first. `begun`: for each message when it began (ms), and its thread or an empty text."""
    # By this machine's clock, which starts no message: people only read it.
    zero_ms = (time.time() - time.monotonic()) * 1000
    # One that is taken from the buffer at this moment has not begun.
    begun = [
        (int(zero_ms + lease.started_at * 1000), lease, thread)
        for lease, thread in runs
        if lease.started_at
    ]
    tasks: dict[tuple[str, str], tuple[int, int]] = {}
    for began_ms, lease, _ in begun:
        task = registry.by_code.get(task_code_of(lease.record))
        of = lease.partition.topic, task.name if task is not None else ""
        count, first_ms = tasks.get(of, (0, began_ms))
        tasks[of] = count + 1, min(first_ms, began_ms)
    most = sorted(tasks.items(), key=lambda item: -item[1][0])[:MOST_TASKS]
    longest = sorted(begun, key=lambda run: run[0])[:MOST_BEGUN]
    return {
        "tasks": [[*of, *counted] for of, counted in most],
        "begun": {
            lease.id.hex(): [began_ms, thread.name if thread is not None else ""]
            for began_ms, lease, thread in longest
        },
    }
