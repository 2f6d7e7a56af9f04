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
from django_delayq.worker import event_loop as module
from django_delayq.worker.event_loop import EventLoop
from tests.worker.moving import eventually


def leases(count: int) -> list[Lease]:
    return [
        Lease(Partition("default", 0), n.to_bytes(16, "big"), b"", bytes(32), time.monotonic())
        for n in range(count)
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
def test_room_is_told_to_who_found_none(
    make: Callable[[int], EventLoop], work: Work, size: int
) -> None:
    loop = make(size)
    loop.feed(leases(size))
    eventually(lambda: len(loop.running) == size)
    loop._fed_at -= 10
    assert loop.room() == 0
    assert not work.room.is_set()
    work.free.set()
    assert work.room.wait(5)


def test_nearly_full_loop_waits_a_little_for_more_room(
    make: Callable[[int], EventLoop], work: Work
) -> None:
    loop = make(32)
    loop.feed(leases(31))
    assert loop.room() == 0
    loop._fed_at -= 10
    assert loop.room() == 1


def test_cancelled_coroutine_gives_its_place_back(
    make: Callable[[int], EventLoop], work: Work
) -> None:
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


@pytest.mark.long
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


def test_loop_outlives_the_end_of_the_program(work: Work) -> None:
    """asyncio lets SystemExit of any task out of the loop, also of one that a coroutine has started
    by the way."""

    async def leave() -> None:
        raise SystemExit(3)

    async def run(item: Lease) -> None:
        background.append(asyncio.ensure_future(leave()))
        await asyncio.sleep(0.01)
        work.ran.append(item)

    background: list[asyncio.Future[None]] = []
    loop = EventLoop(4, run, work.room.set)
    loop.start()
    items = leases(2)
    for item in items:
        loop.feed([item])
        eventually(lambda item=item: item in work.ran)
    loop.stop()
    assert work.ran == items
    assert not loop._thread.is_alive()  # type: ignore[union-attr]


def test_loop_that_a_coroutine_blocks_is_noticed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCKED", 0.05)
    begun = threading.Event()

    async def run(item: Lease) -> None:
        if item is blocking:
            begun.set()
            work.free.wait(10)
        else:
            await asyncio.sleep(10)

    loop = EventLoop(4, run, work.room.set)
    loop.start()
    blocking, sleeping = leases(2)
    loop.feed([sleeping])
    eventually(lambda: loop.running == [sleeping])
    loop.feed([blocking])
    assert begun.wait(5)
    assert not loop.blocked
    loop.cancel(sleeping)
    eventually(lambda: loop.blocked)
    work.free.set()
    eventually(lambda: not loop.blocked and loop.running == [])
    loop.stop()


def test_cancellation_that_is_swallowed_costs_a_place_and_no_more(work: Work) -> None:
    async def run(item: Lease) -> None:
        while item is stubborn and not work.free.is_set():
            try:
                await asyncio.sleep(10 if not work.cancelled else 0.001)
            except asyncio.CancelledError:
                work.cancelled.append(item)
        work.ran.append(item)

    loop = EventLoop(2, run, work.room.set)
    loop.start()
    stubborn, *others = leases(4)
    loop.feed([stubborn])
    eventually(lambda: loop.running == [stubborn])
    loop.cancel(stubborn)
    eventually(lambda: work.cancelled == [stubborn])
    for other in others:
        loop.feed([other])
        eventually(lambda other=other: other in work.ran)
    assert not loop.blocked
    work.free.set()
    eventually(lambda: loop.running == [])
    loop.stop()


def test_what_is_abandoned_runs_its_finally_blocks_before_the_end(work: Work) -> None:
    """Also what a coroutine has started beside itself."""
    ends: list[str] = []

    async def beside() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ends.append("beside")

    async def run(item: Lease) -> None:
        background = asyncio.ensure_future(beside())
        try:
            await asyncio.sleep(10)
        finally:
            ends.append("coroutine")
            assert background

    async def at_end() -> None:
        ends.append("end")

    loop = EventLoop(1, run, work.room.set, at_end)
    loop.start()
    loop.feed(leases(1))
    eventually(lambda: loop.running)
    loop.stop()
    assert (sorted(ends), ends[-1]) == (["beside", "coroutine", "end"], "end")
