"""Threads and their buffer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context

import pytest
from django.core.cache import caches

from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.worker import thread_pool as module
from django_delayq.worker.thread_pool import ThreadPool
from tests.worker.moving import eventually, unformattable


def lease(number: int = 0) -> Lease:
    return Lease(
        Partition("default", 0), number.to_bytes(16, "big"), b"", bytes(32), time.monotonic()
    )


class Work:
    """What the pool runs: blocks while `blocked` is set."""

    def __init__(self) -> None:
        self.ran: list[Lease] = []
        self.threads: set[str] = set()
        self.free = threading.Event()
        self.free.set()
        self.room = threading.Event()

    def run(self, item: Lease) -> None:
        self.threads.add(threading.current_thread().name)
        self.free.wait(20)
        self.ran.append(item)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def make(work: Work) -> Iterator[Callable[[int], ThreadPool]]:
    pools: list[ThreadPool] = []

    def start(size: int) -> ThreadPool:
        pool = ThreadPool(size, work.run, work.room.set)
        pools.append(pool)
        pool.start()
        return pool

    yield start
    work.free.set()
    for pool in pools:
        pool.stop()
        for slot in pool.slots:
            slot.thread.join(5)  # type: ignore[union-attr]


def test_everything_that_is_fed_is_run_once(make: Callable[[int], ThreadPool], work: Work) -> None:
    pool = make(4)
    leases = [lease(n) for n in range(500)]
    for at in range(0, 500, 50):
        pool.feed(leases[at : at + 50])
    eventually(lambda: pool.kick() or len(work.ran) == 500)
    assert set(work.ran) == set(leases)
    assert (pool.buffered, pool.running) == (0, [])


def test_new_pool_has_room_for_its_threads(make: Callable[[int], ThreadPool]) -> None:
    assert make(3).room() == 3


def test_one_thread_runs_in_the_order_of_feeding(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    pool = make(1)
    leases = [lease(n) for n in range(20)]
    pool.feed(leases)
    eventually(lambda: len(work.ran) == 20)
    assert work.ran == leases


def test_long_tasks_run_beside_each_other_on_all_threads(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    pool = make(3)
    work.free.clear()
    pool.feed([lease(n) for n in range(5)])
    eventually(lambda: len(pool.running) == 3)
    assert (pool.buffered, pool.room()) == (2, 0)
    work.free.set()
    eventually(lambda: len(work.ran) == 5)
    assert len(work.threads) == 3


def test_short_tasks_let_it_take_work_in_advance_but_not_much(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    pool = make(2)
    pool._mean_s = 0.001
    assert pool.room() == 2 + int(module.BUFFERED_WORK * 2 / 0.001)
    pool._mean_s = 1e-9
    assert pool.room() == 2 + module.MAX_BUFFERED
    pool._mean_s = 10.0
    assert pool.room() == 2


def test_room_is_told_when_half_of_the_buffer_is_free(work: Work) -> None:
    """And not only when it is empty: the next batch is on its way while the last messages run."""
    told: list[int] = []
    pool = ThreadPool(1, work.run, lambda: told.append(pool.buffered))
    pool._mean_s = 0.0001
    work.free.clear()
    pool.feed([lease(n) for n in range(pool.room())])
    pool.start()
    eventually(lambda: pool.running)
    assert pool.room() == 0
    work.free.set()
    eventually(lambda: told)
    pool.stop()
    assert 50 < told[0] <= 100


def test_nothing_is_taken_in_advance_while_every_thread_is_held_up(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    """Tasks were short, so that much is buffered; now long ones came, and what waits behind them
    helps nobody."""
    pool = make(2)
    pool._mean_s = 0.001
    work.free.clear()
    pool.feed([lease(n) for n in range(2)])
    pool.kick()
    eventually(lambda: len(pool.running) == 2)
    assert pool.room() == 40
    for slot in pool.slots:
        slot.begun -= module.HELD_UP
    assert pool.room() == 0
    pool.slots[0].begun += module.HELD_UP
    assert pool.room() == 40


def test_room_is_told_as_soon_as_one_of_the_threads_is_free_again(work: Work) -> None:
    told = threading.Event()
    pool = ThreadPool(1, work.run, told.set)
    pool._mean_s = 0.001
    work.free.clear()
    pool.feed([lease()])
    pool.start()
    eventually(lambda: pool.running)
    pool.slots[0].begun -= module.HELD_UP
    assert pool.room() == 0
    work.free.set()
    assert told.wait(5)
    eventually(lambda: pool.slots[0].idle)
    pool._mean_s = 0.001
    assert pool.room() == 1 + int(module.BUFFERED_WORK / 0.001)
    pool.stop()


def test_mean_follows_how_long_tasks_take(make: Callable[[int], ThreadPool], work: Work) -> None:
    pool = make(1)
    pool.feed([lease(n) for n in range(50)])
    eventually(lambda: len(work.ran) == 50)
    eventually(lambda: pool.slots[0].idle)
    assert 0 < pool._mean_s < 0.05


def test_work_beside_idle_threads_is_stuck_until_a_kick(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    """What was thought to be short turns out to be long: the others must not wait behind it."""
    pool = make(2)
    pool._mean_s = 0.0001
    work.free.clear()
    pool.feed([lease(n) for n in range(3)])
    eventually(lambda: pool.running)
    assert pool.stuck
    pool.kick()
    eventually(lambda: len(pool.running) == 2)
    assert not pool.stuck


def test_kick_of_an_empty_pool_is_nothing(make: Callable[[int], ThreadPool]) -> None:
    pool = make(1)
    pool.kick()
    assert pool._wake.empty()


def test_what_waits_too_long_is_taken_back(work: Work) -> None:
    pool = ThreadPool(1, work.run, work.room.set)
    old, young = lease(1), lease(2)
    old.claimed_at -= 10
    pool.feed([old, young])
    assert pool.take_back(5.0) == [old]
    assert pool.take_back(5.0) == []
    assert pool.take_back() == [young]
    assert pool.buffered == 0


def test_it_is_filled_when_each_thread_has_its_next_message(
    make: Callable[[int], ThreadPool], work: Work
) -> None:
    pool = make(2)
    work.free.clear()
    pool.feed([lease(number) for number in range(3)])
    eventually(lambda: len(pool.running) == 2)
    assert (pool.buffered, pool.filled) == (1, False)
    pool.feed([lease(3)])
    assert (pool.buffered, pool.filled) == (2, True)


def test_stop_lets_the_threads_finish(make: Callable[[int], ThreadPool], work: Work) -> None:
    pool = make(2)
    work.free.clear()
    pool.feed([lease(1)])
    eventually(lambda: pool.running)
    pool.stop()
    work.free.set()
    for slot in pool.slots:
        slot.thread.join(5)  # type: ignore[union-attr]
        assert not slot.thread.is_alive()  # type: ignore[union-attr]
    assert len(work.ran) == 1


def test_thread_outlives_whatever_a_run_raises(
    work: Work, capfd: pytest.CaptureFixture[str]
) -> None:
    """The executor raises nothing; if it did, no message may cost the others a thread."""
    errors = [SystemExit(1), unformattable(), KeyboardInterrupt(), ValueError("x")]

    def run(item: Lease) -> None:
        if errors:
            raise errors.pop()
        work.run(item)

    pool = ThreadPool(1, run, work.room.set)
    pool.start()
    for number in range(5):
        pool.feed([lease(number)])
        eventually(lambda: not pool.buffered and pool.slots[0].idle)
        assert pool.running == []
    assert len(work.ran) == 1
    pool.stop()
    pool.slots[0].thread.join(5)  # type: ignore[union-attr]
    assert not pool.slots[0].thread.is_alive()  # type: ignore[union-attr]


def test_threads_close_their_database_connections_when_they_end(
    make: Callable[[int], ThreadPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(module, "close_all", lambda: closed.append(threading.current_thread().name))
    pool = make(2)
    pool.stop()
    for slot in pool.slots:
        slot.thread.join(5)  # type: ignore[union-attr]
    assert sorted(closed) == ["delayq-pool-0", "delayq-pool-1"]


def test_a_thread_closes_old_connections_before_and_after_it_waits_for_long(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have closed them meanwhile. A moment is no wait."""
    did: list[str] = []
    monkeypatch.setattr(module, "close_broken", lambda: did.append("closed"))
    monkeypatch.setattr(module, "renew_all", lambda: did.append("renewed"))
    pool = ThreadPool(1, lambda item: did.append("ran"), work.room.set)
    pool.start()
    pool.feed([lease(1), lease(2)])
    eventually(lambda: did.count("ran") == 2 and pool.slots[0].idle)
    pool.feed([lease(3)])
    eventually(lambda: did.count("ran") == 3 and pool.slots[0].idle)
    assert did == ["renewed", "ran", "ran", "renewed", "ran"]
    did.clear()
    eventually(lambda: did == ["closed"])
    pool.feed([lease(4)])
    eventually(lambda: did.count("ran") == 1 and pool.slots[0].idle)
    pool.stop()
    pool.slots[0].thread.join(5)  # type: ignore[union-attr]
    assert did[:3] == ["closed", "closed", "ran"]


def test_tasks_of_a_thread_share_its_caches(work: Work) -> None:
    """Each task has a context of its own, in which Django would make them anew, with new
    connections."""
    found: list[object] = []
    pool = ThreadPool(
        1, lambda item: copy_context().run(lambda: found.append(caches["default"])), work.room.set
    )
    pool.start()
    pool.feed([lease(1), lease(2)])
    eventually(lambda: len(found) == 2)
    pool.stop()
    assert found[0] is found[1]
