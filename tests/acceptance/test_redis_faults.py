"""Redis dies, stops, drops connections or stands still while workers run: they go on by
themselves."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable

import pytest

from django_delayq import DelayedTask, Handle, StoreUnavailable
from django_delayq.core.exceptions import EnqueueUnknown
from django_delayq.store import get_store
from tests.acceptance import tasks
from tests.acceptance.harness import Figure, Queue, percentile, stop_gracefully
from tests.servers import Server, wait_until

pytestmark = pytest.mark.acceptance

Servers = Callable[..., Server]
Queues = Callable[..., Queue]


class Sender(threading.Thread):
    """Enqueues a message every few milliseconds, and those that Redis did not take again until it
    does."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.accepted: list[Handle] = []
        self.refused = 0
        self.repeated: set[str] = set()
        """Sent twice, because nobody knew whether the first time had arrived."""
        self._ended = threading.Event()

    def run(self) -> None:
        for number in itertools.count():
            if self._ended.wait(0.003):
                return
            self._send(tasks.note.using(delay=random.choice((0, 0.05, 0.3, 0.9))), number)

    def _send(self, task: DelayedTask[..., None], number: int) -> None:
        while not self._ended.is_set():
            try:
                self.accepted.append(task.enqueue(number))
            except StoreUnavailable:
                self.refused += 1
            except EnqueueUnknown as error:
                self.repeated.add(error.ids[0])
                task = task.using(id=error.ids[0])
            else:
                return
            self._ended.wait(0.05)

    def stop(self) -> list[Handle]:
        """End it; returns what was accepted."""
        self._ended.set()
        self.join()
        return self.accepted


@pytest.mark.long
@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_killed_redis_loses_nothing_that_was_accepted(
    own_server: Servers, queue_on: Queues, figure: Figure, fsync: str
) -> None:
    server = own_server(appendfsync=fsync)
    queue = queue_on(server)
    workers = [queue.worker("--concurrency", "4"), queue.worker("--concurrency", "4")]
    sender = Sender()
    sender.start()
    for crash in (1, 2):
        wait_until(lambda n=crash * 120: len(queue.history.starts()) > n, "messages run")
        before = sender.refused
        server.kill()
        wait_until(lambda n=before: sender.refused > n + 1, "the producer has noticed")
        server.restart()
    before = queue.history.count()
    wait_until(lambda: queue.history.count() > before + 120, "messages run again")
    handles = sender.stop()
    queue.wait_until_drained()

    lost, twice, repeated = (
        queue.history.lost(handles),
        set(queue.history.duplicates()),
        sender.repeated,
    )
    figure(
        f"{len(handles)} accepted, {sender.refused} refused, {len(repeated)} unknown and sent "
        f"again; "
        f"{len(lost)} lost, {len(twice)} ran twice"
    )
    assert not lost
    assert not queue.history.early(handle for handle in handles if handle.id not in repeated)
    # No worker died, and every outage was shorter than the ttr. What was sent again may have been
    # finished before.
    assert twice <= repeated
    assert {end.id for end in queue.ends()} == {handle.id for handle in handles}
    assert {end.state for end in queue.ends()} == {"acked"}
    assert [worker.stop() for worker in workers] == [0, 0]


def test_stopped_redis_comes_back_and_waiting_workers_go_on(
    own_server: Servers, queue_on: Queues, figure: Figure
) -> None:
    server = own_server()
    queue = queue_on(server)
    worker = queue.worker()
    waiting = [tasks.note.using(delay=delay).enqueue() for delay in (2.0, 2.5, 3.0)]
    stop_gracefully(server)
    worker.wait_for("dispatcher: ")
    server.restart()

    back = time.monotonic()
    fresh = tasks.note.enqueue_many([()])
    queue.wait_for_runs(fresh, 2)
    figure(f"a new message ran {time.monotonic() - back:.2f} s after the restart")
    queue.wait_for_runs(waiting, 5)
    figure(
        f"waiting ones ran at most {percentile(queue.history.lateness(waiting).values(), 1):.0f} "
        f"ms late"
    )

    assert max(queue.history.lateness(fresh).values()) < 1.2
    assert max(queue.history.lateness(waiting).values()) < 0.2
    assert not queue.history.early([*waiting, *fresh])
    assert worker.output.count("Redis is back") == 1
    assert worker.stop() == 0


def test_worker_survives_the_loss_of_all_connections(
    own_server: Servers, queue_on: Queues, figure: Figure
) -> None:
    server = own_server()
    queue = queue_on(server)
    worker = queue.worker()
    handles: list[Handle] = []
    for _ in range(5):
        with server.client() as client:
            for kind in ("normal", "pubsub"):
                client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        get_store().client.redis.connection_pool.disconnect()  # the producer is not what is tested here
        handles += tasks.note.enqueue_many([()])
        handles += tasks.note.using(delay=0.2).enqueue_many([()])
        queue.wait_for_runs(handles, 3)
    late = queue.history.lateness(handles)
    figure(f"at most {percentile(late.values(), 1):.0f} ms late")

    assert max(late.values()) < 1.2
    assert not queue.history.early(handles)
    assert not queue.history.duplicates()
    queue.wait_until_drained()
    assert queue.acked_once(handles)
    assert worker.stop() == 0


def test_worker_survives_a_redis_that_stands_still(
    own_server: Servers, queue_on: Queues, figure: Figure
) -> None:
    server = own_server()
    queue = queue_on(server, SOCKET_TIMEOUT=0.3)
    worker = queue.worker()
    during = tasks.note.using(delay=0.5).enqueue_many([()] * 50)
    with server.client() as client:
        client.execute_command("CLIENT", "PAUSE", 1200, "ALL")
        paused = time.monotonic()
        wait_until(client.ping, "Redis answers again")
        figure(f"paused for {time.monotonic() - paused:.1f} s with a socket timeout of 0.3 s")
    queue.wait_for_runs(during, 5)
    after = tasks.note.enqueue_many([()])
    queue.wait_for_runs(after, 3)
    queue.wait_until_drained()

    figure(
        f"the messages of the pause at most "
        f"{percentile(queue.history.lateness(during).values(), 1):.0f} ms late"
    )
    assert not queue.history.duplicates()
    assert not queue.history.early([*during, *after])
    assert queue.acked_once([*during, *after])
    assert worker.stop() == 0
