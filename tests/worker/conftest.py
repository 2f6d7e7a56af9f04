"""Parts of a worker on a real server, driven by hand; a whole worker for the few tests that need
its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_delayq.core import signals
from django_delayq.core.conf import get_settings
from django_delayq.core.signals import Event
from django_delayq.store import get_store
from django_delayq.store.keys import Partition, wakeups_channel
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.executor import Executor
from django_delayq.worker.outcome import Outcome
from django_delayq.worker.shared import Shared
from django_delayq.worker.worker import Worker, WorkerOptions
from tests.worker.moving import LONG_AGO

NAMES = (
    "enqueued", "started", "acked", "retried", "snoozed", "put_off", "released", "dead",
    "reclaimed", "expired", "lease_lost", "cancelled", "rescheduled", "topic_paused",
    "topic_resumed",
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """Nothing is seen, nothing waits; whatever still waits at the end goes on."""
    from tests.app.tasks import entered, gate, seen

    seen.clear()
    gate.clear()
    entered.clear()
    yield
    gate.set()


@pytest.fixture
def shared(delayq: RedisStore) -> Shared:
    """What the parts of one worker of all topics share."""
    shared = Shared(delayq, get_settings(), "host:1:test", tuple(sorted(registry.known_topics())))
    shared.clock.sync(int(delayq.clock_ms() * 1000))
    return shared


@pytest.fixture
def outcomes() -> list[Outcome]:
    """What the executor hands to the settler."""
    return []


@pytest.fixture
def executor(shared: Shared, outcomes: list[Outcome]) -> Executor:
    return Executor(shared, outcomes.append)


@pytest.fixture
def claim(shared: Shared) -> Callable[..., Lease]:
    """Enqueues a message that is due, claims it and holds its lease."""

    def enqueue_and_claim(task: Any, *args: Any, **kwargs: Any) -> Lease:
        handle = task.using(due_at=LONG_AGO).enqueue(*args, **kwargs)
        partition = Partition(handle.topic, 0)
        (lease,) = shared.store.claim(partition, 1).leases
        shared.held.add(lease)
        return lease

    return enqueue_and_claim


class Heard(dict[str, list[Event]]):
    """Every event by the name of its signal."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: list[tuple[Signal, Any]] = []
        for name in NAMES:
            self.listen(name)

    def listen(self, name: str) -> None:
        self[name] = []

        def receive(sender: str, events: Any, **kwargs: Any) -> None:
            self[name].extend(events)

        signal: Signal = getattr(signals, name)
        signal.connect(receive)
        self.receivers.append((signal, receive))

    def names(self) -> list[str]:
        """The signals that were sent."""
        return [name for name, events in self.items() if events]


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    yield heard
    for signal, receive in heard.receivers:
        signal.disconnect(receive)


@pytest.fixture
def work(delayq: RedisStore) -> Iterator[Callable[..., Worker]]:
    """Starts a worker; ends it, with every thread, after the test."""
    begun: list[Worker] = []
    before = set(threading.enumerate())

    def start(**options: Any) -> Worker:
        names = {
            "topics": tuple(sorted(registry.known_topics())),
            "concurrency": 2,
            "shutdown_timeout": 5.0,
        }
        worker = Worker(get_store(), get_settings(), WorkerOptions(**(names | options)))
        begun.append(worker)
        worker.start()
        return worker

    yield start
    from tests.app.tasks import gate

    gate.set()
    for worker in begun:
        if not worker.draining:
            worker.stop()
    # A word for the listeners, which would otherwise wait for one for a second before they see that
    # they may end.
    delayq.client.redis.publish(wakeups_channel(delayq.client.prefix), "the end")
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("delayq"):
            thread.join(5)
