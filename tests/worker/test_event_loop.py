"""Coroutines."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_delayq.store.keys import Partition
from django_delayq.store.lease import Lease
from django_delayq.worker.event_loop import EventLoop
from tests.worker.moving import eventually


def leases(count: int) -> list[Lease]:
    return [
        Lease(Partition("default", 0), n.to_bytes(16, "big"), b"", bytes(32), time.monotonic()) for n in range(count)
    ]


class Work:
    def __init__(self) -> None:
        self.ran: list[Lease] = []
        self.cancelled: list[Lease] = []
        self.free = threading.Event()
        self.room = threading.Event()

    async def run(self, item: Lease) -> None:
        try:
            while not self.free.is_set():
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        self.ran.append(item)


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def make(work: Work) -> Iterator[Callable[[int], EventLoop]]:
    loops: list[EventLoop] = []

    def start(size: int) -> EventLoop:
        loop = EventLoop(size, work.run, work.room.set)
        loops.append(loop)
        loop.start()
        return loop

    yield start
    work.free.set()
    for loop in loops:
        eventually(lambda loop=loop: loop._ended == loop._fed)
        loop.stop()
        loop._thread.join(5)  # type: ignore[union-attr]


def test_coroutines_run_beside_each_other(make: Callable[[int], EventLoop], work: Work) -> None:
    loop = make(10)
    items = leases(10)
    loop.feed(items[:4])
    loop.feed(items[4:])
    eventually(lambda: len(loop.running) == 10)
    assert loop.room() == 0
    work.free.set()
    eventually(lambda: loop.room() == 10)
    assert set(work.ran) == set(items)
    assert loop.running == []


def test_room_is_taken_at_once(make: Callable[[int], EventLoop]) -> None:
    """Before the loop has seen them: the dispatcher must not claim for the same place twice."""
    loop = make(10)
    loop.feed(leases(7))
    assert loop.room() == 3


@pytest.mark.parametrize("size", [1, 4, 32])
def test_room_is_told_to_who_found_none(make: Callable[[int], EventLoop], work: Work, size: int) -> None:
    loop = make(size)
    loop.feed(leases(size))
    eventually(lambda: len(loop.running) == size)
    loop._fed_at -= 10
    assert loop.room() == 0
    assert not work.room.is_set()
    work.free.set()
    assert work.room.wait(5)


def test_nearly_full_loop_waits_a_little_for_more_room(make: Callable[[int], EventLoop], work: Work) -> None:
    loop = make(32)
    loop.feed(leases(31))
    assert loop.room() == 0
    loop._fed_at -= 10
    assert loop.room() == 1


def test_cancelled_coroutine_gives_its_place_back(make: Callable[[int], EventLoop], work: Work) -> None:
    loop = make(4)
    first, second = leases(2)
    loop.feed([first, second])
    eventually(lambda: len(loop.running) == 2)
    loop.cancel(first)
    eventually(lambda: loop.room() == 3)
    assert work.cancelled == [first]
    assert loop.running == [second]


def test_cancelling_what_does_not_run_is_nothing(make: Callable[[int], EventLoop]) -> None:
    make(1).cancel(leases(1)[0])


def test_stop_before_the_start_is_nothing(work: Work) -> None:
    EventLoop(1, work.run, work.room.set).stop()


@pytest.mark.filterwarnings("error")
def test_nothing_is_left_open(work: Work) -> None:
    """A loop that is only dropped says so with a ResourceWarning."""
    gc.collect()
    for started in (True, False):
        loop = EventLoop(1, work.run, work.room.set)
        if started:
            loop.start()
        loop.stop()
        if started:
            loop._thread.join(5)  # type: ignore[union-attr]
        del loop
        gc.collect()
