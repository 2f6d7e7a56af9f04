"""--concurrency auto: threads are added while all are busy with waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_delayq import delayed_task
from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.store.store import RedisStore
from django_delayq.worker import thread_grower
from django_delayq.worker.outcome import Result
from django_delayq.worker.thread_grower import BUSY_LOOKS, MOST_THREADS, ThreadGrower
from django_delayq.worker.thread_pool import ThreadPool
from django_delayq.worker.worker import Worker
from tests.worker.moving import LONG_AGO, eventually

Begin = Callable[[int], ThreadPool[Lease]]


@pytest.fixture
def waits() -> Iterator[threading.Event]:
    """What the threads wait for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def begin(waits: threading.Event) -> Iterator[Begin]:
    """A pool of so many threads, all of them busy."""
    pools: list[ThreadPool[Lease]] = []

    def start(size: int) -> ThreadPool[Lease]:
        pool: ThreadPool[Lease] = ThreadPool(size, lambda lease: waits.wait(20), lambda: None)
        pools.append(pool)
        pool.start()
        pool.feed([lease(number) for number in range(size)])
        eventually(lambda: len(pool.running) == size)
        return pool

    yield start
    waits.set()
    for pool in pools:
        pool.stop()


def lease(number: int) -> Lease:
    return Lease(
        Partition("default", 0), number.to_bytes(16, "big"), b"", bytes(32), time.monotonic()
    )


def look(grower: ThreadGrower, times: int = BUSY_LOOKS) -> None:
    for _ in range(times):
        time.sleep(0.001)
        grower.run_once()


def test_threads_are_added_when_all_have_been_busy_for_some_looks(begin: Begin) -> None:
    pool = begin(2)
    grower = ThreadGrower(pool)
    look(grower, BUSY_LOOKS - 1)
    assert pool.size == 2
    look(grower, 1)
    assert pool.size == len(pool.slots) == 4
    assert pool.room() == 2
    pool.feed([lease(10), lease(11)])
    eventually(lambda: len(pool.running) == 4)


def test_an_idle_thread_is_enough(begin: Begin) -> None:
    pool = begin(2)
    pool.grow(1)
    look(ThreadGrower(pool), 3 * BUSY_LOOKS)
    assert pool.size == 3


def test_a_process_that_computes_gets_none(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = begin(2)
    monkeypatch.setattr(thread_grower.time, "process_time", time.monotonic)
    look(ThreadGrower(pool), 3 * BUSY_LOOKS)
    assert pool.size == 2


def test_there_is_an_end_to_it(begin: Begin) -> None:
    pool = begin(60)
    for _ in range(3):
        look(ThreadGrower(pool))
        pool.feed([lease(number) for number in range(100, 100 + pool.room())])
        eventually(lambda: len(pool.running) == pool.size)
    assert pool.size == MOST_THREADS


@pytest.mark.long
@pytest.mark.parametrize("more", [True, False])
def test_a_worker_grows_where_it_is_told_to(
    work: Callable[..., Worker], delayq: RedisStore, declared: dict[str, Any], more: bool
) -> None:
    task = delayed_task(name="waits_a_while")(lambda number: time.sleep(0.4))
    task.using(due_at=LONG_AGO).enqueue_many((number,) for number in range(20))
    worker = work(concurrency=2, more_threads=more)
    eventually(lambda: worker.settled[Result.ACKED] == 20, 20)
    assert (worker.figures()["concurrency"] > 2) is more


def test_the_command_takes_a_number_or_auto() -> None:
    with pytest.raises(CommandError, match="'many' is not a whole number from 1 to 1,000"):
        call_command("run_delayq", "--concurrency", "many")
