"""Faults inside one worker: what a neighbour that crashes, hangs or leaks does to everything else
in the process.

After each of them every other message runs on time, nothing is held that nobody runs, the probes
tell the truth, and what was taken is given back.
"""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.contenttypes.models import ContentType
from django.db import connection, connections
from django.db.backends.signals import connection_created

from django_delayq import Batch, constant, current_message, delayed_task
from django_delayq.client.handle import Handle
from django_delayq.core import signals
from django_delayq.store.keys import Partition, leased_key
from django_delayq.store.store import RedisStore
from django_delayq.worker import quarantine
from django_delayq.worker.agenda import Agenda
from django_delayq.worker.outcome import Result
from django_delayq.worker.worker import Worker
from tests.app.tasks import crowd, entered, gate, hang, noop, record, remind, seen, wait
from tests.faults import unreachable
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, counters, crash, eventually, unformattable

Work = Callable[..., Worker]
#: How late a message may be beside a fault (seconds). A few milliseconds on a quiet machine.
ON_TIME = 2.0


def sound(worker: Worker, hanging: int = 0) -> None:
    """What has to be true after every fault: of the messages only so many may still hang."""
    begun = time.monotonic()
    number = object()
    before = len(seen)
    record.enqueue(f"after {id(number)}")
    remind.enqueue(id(number))
    eventually(lambda: {f"after {id(number)}", id(number)} <= set(seen[before:]))
    assert time.monotonic() - begun < ON_TIME
    eventually(lambda: len(worker.shared.held) == hanging and worker.settler.idle)
    eventually(lambda: worker.idle)
    assert len(worker.pool.running) + len(worker.event_loop.running) == hanging
    eventually(lambda: worker.ready)
    assert not worker.stuck
    assert (worker.figures()["in_flight"], worker.figures()["overrun"]) == (hanging, hanging)
    assert worker.dispatcher.quarantine._suspect is None
    assert all(slot.thread is not None and slot.thread.is_alive() for slot in worker.pool.slots)
    assert all(service.alive for service in worker.services)
    eventually(lambda: len(worker.lease_keeper._given_up) <= hanging)


@contextmanager
def pinging(every: float = 0.05) -> Iterator[list[float]]:
    """Enqueues a message now and then; gives how late each of them ran (seconds)."""
    late: list[float] = []
    sent: list[str] = []
    acked: dict[str, float] = {}

    def receive(events: Any, **kwargs: Any) -> None:
        acked.update((event.id, event.lateness_ms / 1000) for event in events)

    def ping() -> None:
        while not stop.wait(every):
            sent.append(noop.enqueue().id)

    stop = threading.Event()
    thread = threading.Thread(target=ping)
    with receiving({"acked": receive}):
        thread.start()
        try:
            yield late
        finally:
            stop.set()
            thread.join()
        eventually(lambda: set(sent) <= set(acked))
        late.extend(acked[message] for message in sent)


@contextmanager
def receiving(receivers: dict[str, Any]) -> Iterator[None]:
    """These hear the signals of these names."""
    for name, receive in receivers.items():
        getattr(signals, name).connect(receive)
    try:
        yield
    finally:
        for name, receive in receivers.items():
            getattr(signals, name).disconnect(receive)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Suspects are waited for in tenths of a second."""
    monkeypatch.setattr(quarantine, "PATIENCE", 0.3)
    monkeypatch.setattr(quarantine, "ALONE", 0.3)
    monkeypatch.setattr(quarantine, "UNMATCHED", 0.6)
    monkeypatch.setattr(quarantine, "AWAY_MS", (50, 150))


# Crashes


@pytest.mark.long
def test_all_that_two_kills_left_behind_runs(
    work: Work, split: Callable[[int], RedisStore]
) -> None:
    """Of several partitions and topics, `def` and `async def`: all are suspects, and all are due
    together."""
    store = split(4)
    handles: list[Handle] = [
        task.using(due_at=LONG_AGO).enqueue(number)
        for task in (record, remind, crowd)
        for number in range(8)
    ]
    for topic in ("default", "orders"):
        crash(store, 2, *(handle for handle in handles if handle.topic == topic))
    crash_crowd(store, [handle for handle in handles if handle.topic == "crowd"])
    worker = work()
    with pinging() as late:
        eventually(lambda: len(seen) == len(handles), 30)
    assert sorted(seen) == sorted(list(range(8)) * 3)
    assert max(late) < ON_TIME
    for topic in ("default", "orders", "crowd"):
        assert "dead" not in counters(topic)
    sound(worker)


def crash_crowd(store: RedisStore, handles: list[Handle]) -> None:
    for partition in store.partitions.all("crowd"):
        for _ in range(2):
            leases = store.claim(partition, 500).leases
            for lease in leases:
                store.client.command(
                    "ZADD", leased_key(store.client.prefix, partition), "XX", 1, lease.id
                )
            store.reclaim(partition)
            for lease in leases:
                store.reschedule_in(partition, lease.id, "1000000000000")


# What hangs


@pytest.mark.long
def test_suspect_that_hangs_costs_its_thread_and_a_moment(
    work: Work, delayq: RedisStore, quick: None
) -> None:
    crash(delayq, 2, hang.using(due_at=LONG_AGO).enqueue())
    worker = work()
    assert entered.wait(10)
    assert not worker.ready  # it has the process to itself
    with pinging() as late:
        eventually(lambda: worker.ready)
        eventually(lambda: worker.lease_keeper.overrun == 1)
        eventually(lambda: counters("hangs").get("dead"))
    assert max(late) < ON_TIME
    sound(worker, hanging=1)
    gate.set()
    eventually(lambda: not worker.pool.running)
    sound(worker)


@pytest.mark.long
def test_suspects_that_hang_do_not_hold_up_one_that_does_not(
    work: Work, delayq: RedisStore, quick: None
) -> None:
    crash(delayq, 2, *hang.using(due_at=LONG_AGO).enqueue_many([()] * 3))
    crash(delayq, 2, record.using(due_at=LONG_AGO).enqueue("innocent"))
    worker = work(concurrency=8)
    with pinging() as late:
        eventually(lambda: "innocent" in seen and worker.lease_keeper.overrun == 3, 20)
        eventually(lambda: counters("hangs").get("dead") == 3)
    assert max(late) < ON_TIME
    assert "dead" not in counters("default")
    sound(worker, hanging=3)


@pytest.fixture
def stubborn(declared: dict[str, Any]) -> Any:
    """An `async def` that swallows its cancellation."""

    async def hold_on() -> None:
        entered.set()
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                seen.append("swallowed")

    return delayed_task(topic="stubborn", name="stubborn", ttr=1, max_runtime=1)(hold_on)


@pytest.mark.long
def test_coroutine_that_swallows_its_cancellation_costs_its_place(
    work: Work, delayq: RedisStore, stubborn: Any, quick: None
) -> None:
    crash(delayq, 2, stubborn.using(due_at=LONG_AGO).enqueue())
    worker = work()
    with pinging() as late:
        eventually(lambda: "swallowed" in seen)
        eventually(lambda: counters("stubborn").get("dead"))
    assert max(late) < ON_TIME
    sound(worker, hanging=1)
    gate.set()
    eventually(lambda: not worker.event_loop.running)
    sound(worker)


def test_worker_is_stuck_when_every_coroutine_hangs(
    work: Work, delayq: RedisStore, stubborn: Any
) -> None:
    worker = work(async_concurrency=2)
    stubborn.using(due_at=LONG_AGO).enqueue_many([()] * 2)
    eventually(lambda: seen.count("swallowed") == 2)
    eventually(lambda: worker.stuck)


@pytest.mark.long
def test_worker_is_stuck_when_a_coroutine_blocks_all_others(
    work: Work, delayq: RedisStore, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def block() -> None:
        gate.wait(20)

    monkeypatch.setattr("django_delayq.worker.event_loop.BLOCKED", 0.2)
    worker = work(topics=("default", "blocks"))
    delayed_task(topic="blocks", name="block", ttr=1, max_runtime=1)(block).enqueue()
    eventually(lambda: worker.stuck)
    gate.set()
    eventually(lambda: not worker.stuck)


@pytest.mark.long
def test_hanging_tasks_do_not_hold_up_the_end(work: Work, delayq: RedisStore, quick: None) -> None:
    """Their leases have ended: nobody would hear what becomes of them."""
    crash(delayq, 2, hang.using(due_at=LONG_AGO).enqueue())
    worker = work(shutdown_timeout=60)
    eventually(lambda: counters("hangs").get("dead"))
    begun = time.monotonic()
    assert worker.stop() == 1
    assert time.monotonic() - begun < 5


# What fails in a way that nobody expects


def test_threads_outlive_what_nobody_can_format(
    work: Work, delayq: RedisStore, declared: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    raised: list[BaseException] = []

    def fail(kind: int) -> None:
        raised.append(
            [unformattable(), SystemExit(1), KeyboardInterrupt(), RecursionError(), MemoryError()][
                kind
            ]
        )
        raise raised[-1]

    async def fail_async(kind: int) -> None:
        fail(kind)

    options: dict[str, Any] = {"topic": "modes", "max_attempts": 1}
    for name, function in (("fail", fail), ("fail_async", fail_async)):
        task = delayed_task(name=name, **options)(function)
        task.using(due_at=LONG_AGO).enqueue_many([(kind,) for kind in range(5)])
    worker = work()
    eventually(lambda: counters("modes").get("dead") == 10)
    assert len(raised) == 10
    sound(worker)


@pytest.mark.parametrize("name", ["started", "acked", "enqueued"])
def test_receivers_that_end_the_program_end_no_thread(
    work: Work, delayq: RedisStore, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = work()
    calls: list[str] = []

    def leave(**kwargs: Any) -> None:
        calls.append(threading.current_thread().name)
        if threading.current_thread().name.startswith("delayq") and len(calls) <= 4:
            raise SystemExit(1)

    with receiving({name: leave}):
        for number in range(6):
            noop.enqueue(number)
            eventually(lambda number=number: len(calls) > number)
    sound(worker)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("max_age", [0, None], ids=["closed each time", "kept for ever"])
def test_receivers_that_use_the_database_go_on_after_its_restart(
    work: Work, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch, max_age: int | None
) -> None:
    """On the threads of the settler, the dispatcher and the pool."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", max_age)
    # SQLite has no server and takes every connection for a good one.
    monkeypatch.setattr(type(connections["default"]), "is_usable", lambda self: False)
    fine: list[str] = []
    failed: list[str] = []
    heard: list[Counter[str]] = []

    def receiver(name: str) -> Callable[..., None]:
        def receive(**kwargs: Any) -> None:
            try:
                ContentType.objects.count()
            except Exception:
                failed.append(name)
                raise
            if fine.count(name) == 1:
                connection.connection.close()  # the server is gone, and the thread does not know
            fine.append(name)

        return receive

    names = ("started", "acked", "expired")
    with receiving({name: receiver(name) for name in names}):
        worker = work(concurrency=1)
        for _ in range(5):
            heard.append(Counter(fine + failed))
            noop.enqueue()
            noop.using(due_at=LONG_AGO, expires=1).enqueue()
            eventually(
                lambda: all(Counter(fine + failed)[name] > heard[-1][name] for name in names)
            )
    assert all(failed.count(name) <= 1 for name in names)
    assert all(fine.count(name) >= 4 for name in names)
    sound(worker)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("batch", [None, 10], ids=["one by one", "in batches"])
def test_a_thread_that_waits_a_moment_keeps_its_connection(
    work: Work, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch, batch: int | None
) -> None:
    """And closes it when there is nothing to do for longer."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", 0)
    made: list[Any] = []
    seen_in: list[Any] = []

    def look(_: Any) -> None:
        ContentType.objects.count()
        seen_in.append(connections["default"])

    def look_many(messages: Batch[Any]) -> None:
        look(messages)

    def note(connection: Any, **kwargs: Any) -> None:
        if threading.current_thread().name.startswith("delayq-"):
            made.append(connection)

    task: Any = (
        delayed_task(name="look", batch=batch, linger=0)(look_many)
        if batch
        else delayed_task(name="look")(look)
    )
    work(concurrency=1)
    connection_created.connect(note)
    try:
        begun = time.monotonic()
        for number in range(1, 9):
            task.enqueue(number)
            eventually(lambda number=number: len(seen_in) == number)
        seconds = time.monotonic() - begun
    finally:
        connection_created.disconnect(note)
    assert len(made) <= 1 + seconds  # once for each second that it worked
    eventually(lambda: seen_in[-1].connection is None)


@pytest.mark.django_db(transaction=True)
def test_threads_that_end_leave_no_database_connection_open(
    work: Work, delayq: RedisStore, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the pool, of the services, and the one that coroutines use."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)
    open_ones: dict[str, Any] = {}

    def look(**kwargs: Any) -> None:
        ContentType.objects.count()
        open_ones[threading.current_thread().name] = (
            connections["default"].connection and connections["default"]
        )

    async def look_async() -> None:
        await sync_to_async(look)()

    tasks = [delayed_task(name="look")(look), delayed_task(name="look_async")(look_async)]
    with receiving({"acked": look}):
        worker = work(concurrency=1)
        for task in tasks:
            task.enqueue()
        eventually(lambda: worker.settled[Result.ACKED] == 2)
        worker.stop()
    assert len(open_ones) == 3 and all(open_ones.values())
    eventually(lambda: all(one.connection is None for one in open_ones.values()))


# The maximum of everything


@pytest.mark.long
def test_maximum_of_partitions_with_a_damaged_one_and_one_that_hangs(
    work: Work, split: Callable[[int], RedisStore], quick: None
) -> None:
    store = split(256)
    handles = [crowd.using(due_at=LONG_AGO).enqueue(number) for number in range(512)]
    partitions = store.partitions.all("crowd")
    assert len(partitions) == 256
    damaged = next(partition for partition in partitions if store.queries.stats(partition).waiting)
    lost = store.queries.stats(damaged).waiting
    store.client.command("SET", leased_key(store.client.prefix, damaged), "no zset")
    crash(store, 2, hang.using(due_at=LONG_AGO).enqueue())  # its last run: it hangs once
    worker = work()
    with pinging() as late:
        eventually(lambda: len(seen) == len(handles) - lost, 30)
        eventually(lambda: counters("hangs").get("dead"))
    assert len(set(seen)) == len(handles) - lost
    assert max(late) < 5 * ON_TIME  # one round claims from 256 partitions, one after the other
    sound(worker, hanging=1)


def test_two_hundred_threads_that_are_all_busy(
    work: Work, delayq: RedisStore, declared: dict[str, Any]
) -> None:
    together = threading.Barrier(200)

    def meet(number: int) -> None:
        if current_message().attempt == 1:
            together.wait(20)
        child.enqueue(number)

    child = delayed_task(name="child", on_redis_error="raise")(noop.definition.func)
    task = delayed_task(topic="waits", name="meet", backoff=constant(0.05), max_attempts=100)(meet)
    worker = work(concurrency=200)
    task.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(200)])
    eventually(lambda: worker.settled[Result.ACKED] == 400, 30)
    assert not together.broken
    sound(worker)


def test_every_thread_busy_delays_nothing_of_the_coroutines(
    work: Work, delayq: RedisStore, declared: dict[str, Any]
) -> None:
    async def look() -> None:
        seen.append(current_message().id)

    task = delayed_task(topic="hangs-async", name="look")(look)
    worker = work(concurrency=2)
    wait.using(due_at=LONG_AGO).enqueue_many([()] * 10)
    eventually(lambda: len(worker.pool.running) == 2)
    for _ in range(5):
        begun = time.monotonic()
        handle = task.enqueue()
        eventually(lambda handle=handle: handle.id in seen)
        assert time.monotonic() - begun < ON_TIME
    gate.set()
    eventually(lambda: counters("waits").get("acked") == 10)
    sound(worker)


@pytest.mark.long
def test_memory_stays_flat_over_very_many_claims_while_something_is_due_tomorrow() -> None:
    """The dispatcher plans each partition anew after every claim, for ever."""
    agenda = Agenda({})
    tomorrow = 86_400_000.0
    one, other = Partition("one", 0), Partition("other", 0)
    for partition in (one, other):
        agenda.add(partition)
    for turn in agenda.due(1):
        agenda.plan(turn, tomorrow if turn.partition == one else tomorrow / 24)

    def claims(count: int) -> int:
        for now in range(count):
            agenda.expect(one, now)  # a hint
            for turn in agenda.due(now):
                agenda.charge(turn.partition.topic, 1)
                agenda.plan(turn, tomorrow)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first = claims(5_000)
        assert claims(50_000) - first < 500_000
    finally:
        tracemalloc.stop()
    begun = time.monotonic()
    assert len(agenda.due(tomorrow)) == 2
    assert time.monotonic() - begun < 0.1


# Redis


@pytest.mark.long
def test_redis_away_for_longer_than_max_runtime(
    work: Work, delayq: RedisStore, declared: dict[str, Any], heard: Heard
) -> None:
    """Results wait in time, threads are idle: nothing is stuck, and what has run is settled when
    Redis is back."""

    def soon() -> None:
        seen.append("soon")
        gate.wait(20)

    task = delayed_task(topic="waits", name="soon", ttr=60, max_runtime=1)(soon)
    worker = work(concurrency=4)
    task.using(due_at=LONG_AGO).enqueue_many([()] * 4)
    eventually(lambda: len(worker.pool.running) == 4)
    with unreachable():
        gate.set()
        eventually(lambda: not worker.pool.running)
        until = max(lease.started_at for lease in worker.shared.held) + 1.6
        while time.monotonic() < until:
            assert (worker.stuck, worker.lease_keeper.overrun) == (False, 0)
            time.sleep(0.02)
        assert not worker.ready
        assert len(worker.shared.held) == 4
    eventually(lambda: counters("waits").get("acked") == 4)
    assert heard["lease_lost"] == []
    sound(worker)


@pytest.mark.long
def test_redis_away_for_longer_than_a_lease_is_told_to_the_task(
    work: Work, delayq: RedisStore, declared: dict[str, Any]
) -> None:
    def long() -> None:
        message = current_message()
        entered.set()
        if message.attempt == 1:
            eventually(lambda: message.lease_lost)
        seen.append(message.attempt)

    task = delayed_task(topic="waits", name="long", ttr=1)(long)
    worker = work()
    task.enqueue()
    assert entered.wait(10)
    with unreachable():
        eventually(lambda: seen == [1])
        eventually(
            lambda: not worker.shared.held
        )  # its result could not be stored before the lease ended
    eventually(lambda: counters("waits").get("acked") == 1)
    assert seen == [1, 2]
    sound(worker)
