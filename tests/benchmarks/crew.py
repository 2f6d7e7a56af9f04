"""Many whole workers in one process, one thread for tasks each: `python -m tests.benchmarks.crew
WORKERS TOPICS`. For what a fleet costs Redis: that does not depend on who shares a process."""

from __future__ import annotations

import signal
import sys
import threading

import django


def main(workers: int, topics: str) -> None:
    """Work until SIGTERM."""
    django.setup()
    from django_delayq.core.conf import get_settings
    from django_delayq.store import get_store
    from django_delayq.worker.worker import Worker, WorkerOptions

    options = WorkerOptions(topics=tuple(topics.split(",")), concurrency=1)
    crew = [Worker(get_store(), get_settings(), options) for _ in range(workers)]
    ends = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ends.set())
    for worker in crew:
        worker.start()
    print("Ready", flush=True)
    ends.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
