"""A whole worker: how its parts play together, how it ends."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from django_delayq import Retry, pause_topic, topic_stats
from django_delayq.core import signals
from django_delayq.store.keys import Partition
from django_delayq.store.store import RedisStore
from django_delayq.worker.outcome import Result
from django_delayq.worker.worker import Worker
from tests.app import tasks
from tests.app.tasks import (
    act,
    act_async,
    entered,
    gate,
    hang,
    hang_async,
    noop,
    record,
    remind,
    seen,
    wait,
    wait_async,
)
from tests.faults import unreachable
from tests.worker.conftest import Heard
from tests.worker.moving import LONG_AGO, counters, crash, eventually

Work = Callable[..., Worker]


def test_runs_what_is_due_and_what_comes(work: Work, delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO).enqueue("before")
    worker = work()
    eventually(lambda: seen == ["before"])
    record.enqueue("while it runs")
    remind.enqueue(5)
    eventually(lambda: sorted(seen, key=str) == [5, "before", "while it runs"])
    eventually(lambda: worker.settled[Result.ACKED] == 3)
    assert worker.ready


def test_is_never_early_and_hardly_late(work: Work, heard: Heard, delayq: RedisStore) -> None:
    worker = work()
    eventually(lambda: worker.ready)
    record.enqueue_many(record.using(delay=0.1 + n / 20).prepare(n) for n in range(20))
    eventually(lambda: len(heard["acked"]) == 20)
    late = sorted(event.lateness_ms for event in heard["acked"])
    assert late[0] >= 0
    # With one look at Redis in each second it would be more, also on a machine that is busy.
    assert late[10] < 250
    assert seen == list(range(20))


def test_near_message_does_not_wait_behind_far_ones(work: Work, delayq: RedisStore) -> None:
    record.enqueue_many(record.using(delay=3600 + n).prepare(n) for n in range(2000))
    work()
    record.using(delay=0.05).enqueue("near")
    eventually(lambda: seen == ["near"])


def test_failed_message_runs_again_and_succeeds(
    work: Work, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def third_time_lucky() -> None:
        seen.append(len(seen))
        if len(seen) < 3:
            raise Retry(delay=0)

    monkeypatch.setitem(tasks._MODES, "return", third_time_lucky)
    act.enqueue()
    work()
    eventually(lambda: counters("modes").get("acked"))
    assert seen == [0, 1, 2]
    assert counters("modes")["retried"] == 2


@pytest.mark.parametrize("task", [act, act_async])
def test_every_outcome_reaches_redis(
    work: Work, delayq: RedisStore, heard: Heard, task: Any
) -> None:
    for mode in ("return", "fail", "snooze", "reject", "unworthy", "exit", "surrogate"):
        task.enqueue(mode)
    work()
    eventually(
        lambda: sum(len(heard[name]) for name in ("acked", "retried", "snoozed", "dead")) == 7
    )
    assert {name: len(heard[name]) for name in ("acked", "retried", "snoozed", "dead")} == {
        "acked": 1, "retried": 3, "snoozed": 1, "dead": 2,
    }  # fmt: skip
    assert topic_stats("modes").delayed == 4


# Ending


def test_stop_lets_running_tasks_finish(work: Work, delayq: RedisStore) -> None:
    worker = work()
    wait.enqueue()
    assert entered.wait(10)
    gate.set()
    assert worker.stop() == 0
    assert counters("waits") == {"enqueued": 1, "acked": 1}
    assert not worker.ready


def test_stop_claims_no_more(work: Work, delayq: RedisStore) -> None:
    worker = work()
    eventually(lambda: worker.ready)
    worker.stop()
    record.enqueue("after")
    assert topic_stats("default").leased == 0
    assert seen == []


@pytest.mark.parametrize("task", [wait, wait_async])
def test_what_outlives_the_timeout_is_given_back_with_its_attempt(
    work: Work, delayq: RedisStore, task: Any
) -> None:
    worker = work(shutdown_timeout=0.05)
    handle = task.enqueue()
    assert entered.wait(10)
    assert worker.stop() == 1
    message = handle.get()
    assert message is not None
    assert (message.state, message.attempt, message.crashes) == ("ready", 0, 0)


@pytest.mark.django_db(transaction=True)
def test_what_waits_in_the_buffer_is_given_back_before_the_running_ones_end(
    work: Work, delayq: RedisStore, heard: Heard
) -> None:
    def receive(**kwargs: object) -> None:
        gate.set()

    signals.released.connect(receive)
    worker = work(concurrency=1)
    worker.pool._mean_s = 0.0001
    handles = wait.using(due_at=LONG_AGO).enqueue_many([()] * 5)
    eventually(lambda: worker.pool.buffered == 4)
    assert worker.stop() == 0
    left = [message for handle in handles if (message := handle.get())]
    assert {(message.state, message.attempt) for message in left} == {("ready", 0)}
    assert len(left) == 5 - counters("waits")["acked"] >= 3


def test_stop_leaves_no_heartbeat(work: Work, delayq: RedisStore) -> None:
    worker = work()
    eventually(delayq.workers.heartbeats)
    worker.stop()
    assert delayq.workers.heartbeats() == {}


@pytest.mark.long
def test_stop_without_redis_ends_too(work: Work, delayq: RedisStore) -> None:
    worker = work(shutdown_timeout=0.1)
    wait.enqueue()
    assert entered.wait(10)
    begun = time.monotonic()
    with unreachable():
        assert worker.stop() == 1
    assert time.monotonic() - begun < 10


def test_worker_outlives_an_outage(
    work: Work, delayq: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    worker = work()
    wait.enqueue()
    assert entered.wait(10)
    with unreachable():
        eventually(lambda: not worker.ready)
        gate.set()
        eventually(lambda: not worker.pool.running)
        assert worker.shared.held
    eventually(lambda: worker.ready and counters("waits").get("acked"))
    record.enqueue("after")
    eventually(lambda: seen == ["after"])
    assert "Redis is back after" in caplog.text


def test_burst_is_finished_when_nothing_is_due(work: Work, delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(50)])
    record.using(delay=3600).enqueue("later")
    worker = work(burst=True)
    eventually(lambda: worker.finished)
    assert sorted(seen) == list(range(50))
    assert counters("default")["acked"] == 50
    assert topic_stats("default").delayed == 1


def test_burst_of_nothing_is_finished_at_once(work: Work, delayq: RedisStore) -> None:
    worker = work(burst=True)
    eventually(lambda: worker.finished, 5)


def test_burst_waits_for_what_runs(work: Work, delayq: RedisStore) -> None:
    wait.using(due_at=LONG_AGO).enqueue()
    worker = work(burst=True)
    assert entered.wait(10)
    eventually(lambda: worker.dispatcher.nothing_due)
    assert not worker.finished
    gate.set()
    eventually(lambda: worker.finished)


def test_max_messages_is_the_end(work: Work, delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(50)])
    worker = work(max_messages=20)
    eventually(lambda: worker.finished)
    assert len(seen) == 20
    assert topic_stats("default").backlog == 30


def test_max_messages_counts_what_is_run_and_not_what_is_given_back(
    work: Work, delayq: RedisStore
) -> None:
    """It has claimed more than one thread can run, and gives the rest back."""
    worker = work(concurrency=1, max_messages=5)
    worker.pool._mean_s = 0.001
    wait.using(due_at=LONG_AGO).enqueue_many([()] * 8)
    eventually(lambda: worker.settled[Result.RELEASED] == 4)
    gate.set()
    eventually(lambda: worker.finished)
    assert counters("waits")["acked"] == 5


@pytest.mark.long
def test_burst_does_not_wait_for_what_hangs(work: Work, delayq: RedisStore) -> None:
    crash(delayq, 2, hang.using(due_at=LONG_AGO).enqueue())
    worker = work(burst=True, shutdown_timeout=60)
    eventually(lambda: worker.lease_keeper.overrun == 1)
    eventually(lambda: worker.finished)


@pytest.mark.long
def test_burst_waits_for_suspects_that_are_given_back(work: Work, delayq: RedisStore) -> None:
    handles = record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(3)])
    crash(delayq, 2, *handles)
    worker = work(burst=True)
    eventually(lambda: worker.finished)
    assert sorted(seen) == [0, 1, 2]


def test_without_burst_it_is_never_finished(work: Work, delayq: RedisStore) -> None:
    worker = work()
    eventually(lambda: worker.dispatcher.nothing_due)
    assert not worker.finished


# Trouble


def test_coroutine_beyond_its_max_runtime_is_cancelled(
    work: Work, delayq: RedisStore, heard: Heard
) -> None:
    worker = work(concurrency=1)
    hang_async.enqueue()
    eventually(lambda: heard["retried"])
    assert seen == ["cancelled"]
    assert not worker.stuck


def test_worker_whose_threads_all_hang_is_stuck(
    work: Work, delayq: RedisStore, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = work(concurrency=1, shutdown_timeout=0.05)
    handle = hang.enqueue()
    eventually(lambda: worker.stuck)
    assert worker.stop() == 1
    message = handle.get()
    assert message is not None
    assert message.attempt == 1
    assert "in hang" in capfd.readouterr().err


@pytest.mark.long
def test_message_of_a_crashed_worker_runs_again(work: Work, delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO, ttr=1).enqueue("again")
    assert len(delayq.claim(Partition("default", 0), 1).leases) == 1
    work()
    eventually(lambda: seen == ["again"])
    eventually(lambda: counters("default").get("acked"))
    assert counters("default")["reclaimed"] == 1


def test_topics_that_are_not_served_are_left_alone(work: Work, delayq: RedisStore) -> None:
    record.using(due_at=LONG_AGO).enqueue("served")
    remind.using(due_at=LONG_AGO).enqueue(1)
    work(topics=("default",))
    eventually(lambda: seen == ["served"])
    assert topic_stats("orders").backlog == 1


def test_hint_is_quicker_than_the_sweep(
    work: Work, settings: Any, delayq: RedisStore, heard: Heard
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SWEEP_INTERVAL": 30}
    worker = work()
    eventually(
        lambda: worker.ready and worker.dispatcher.nothing_due and worker.listener._stream._pubsub
    )
    eventually(lambda: record.enqueue("x") and heard["acked"], 10)
    assert min(event.lateness_ms for event in heard["acked"]) < 1000


def test_without_hints_the_sweep_finds_it(work: Work, settings: Any, delayq: RedisStore) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SWEEP_INTERVAL": 0.1}
    worker = work()
    worker.listener.stop()
    eventually(lambda: worker.dispatcher.nothing_due)
    record.enqueue("x")
    eventually(lambda: seen == ["x"])


def test_figures_are_those_of_the_worker(work: Work, delayq: RedisStore) -> None:
    worker = work()
    wait.enqueue()
    assert entered.wait(10)
    eventually(lambda: worker.figures()["in_flight"] == 1)
    figures = worker.figures()
    assert (figures["concurrency"], figures["running"], figures["draining"]) == (2, 1, False)
    assert figures["settled"] == {}
    gate.set()
    eventually(lambda: worker.figures()["settled"] == {"acked": 1})


@pytest.mark.long
def test_what_a_worker_has_no_thread_for_waits_in_redis(work: Work, delayq: RedisStore) -> None:
    """Its tasks were short: it claims ahead. When long ones come it gives back what waits, once,
    and leaves it."""
    worker = work()
    worker.pool._mean_s = 0.001
    wait.using(due_at=LONG_AGO).enqueue_many([()] * 20)
    eventually(lambda: worker.figures()["running"] == 2 and worker.figures()["in_flight"] > 2)
    eventually(lambda: worker.dispatcher.claimed == 2)
    released, claimed = worker.settled[Result.RELEASED], worker.dispatcher.claimed
    time.sleep(1.2)  # more than BUFFER_SECONDS twice
    assert (worker.settled[Result.RELEASED], worker.dispatcher.claimed) == (released, claimed)
    stats = topic_stats("waits")
    assert (stats.backlog, stats.leased) == (18, 2)
    gate.set()
    eventually(lambda: worker.settled[Result.ACKED] == 20)


def test_many_of_both_kinds_all_run_once(work: Work, delayq: RedisStore) -> None:
    noop.enqueue_many([()] * 500)
    remind.enqueue_many([(n,) for n in range(500)])
    work()
    eventually(
        lambda: counters("default").get("acked") == 500 and counters("orders").get("acked") == 500
    )
    assert sorted(seen) == list(range(500))


def test_clock_of_this_machine_does_not_matter(
    work: Work, delayq: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose clock is a day ahead runs nothing early."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86_400)
    worker = work()
    record.using(delay=3600).enqueue("early")
    record.using(due_at=datetime.now(tz=timezone.utc) - timedelta(days=2)).enqueue("due")
    eventually(lambda: seen)
    eventually(lambda: worker.dispatcher.nothing_due)
    assert seen == ["due"]


def test_async_tasks_can_enqueue(work: Work, delayq: RedisStore) -> None:
    assert asyncio.run(record.aenqueue("from async")).outcome == "stored"
    work()
    eventually(lambda: seen == ["from async"])


# Told from outside


def told(worker: Worker, store: RedisStore, quiet: bool) -> float:
    """Tell it, and wait until it has obeyed. Returns how many seconds that took."""
    if quiet:
        store.workers.quiet(worker.shared.name)
    else:
        store.workers.unquiet(worker.shared.name)
    begun = time.monotonic()
    eventually(lambda: worker.dispatcher.quiet is quiet)
    return time.monotonic() - begun


def listening(worker: Worker) -> Worker:
    """It serves, and hears hints."""
    eventually(lambda: worker.dispatcher.nothing_due and worker.listener._stream._pubsub)
    return worker


def test_quiet_worker_stops_claiming_at_once_and_goes_on_when_it_is_told(
    work: Work, settings: Any, delayq: RedisStore
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SWEEP_INTERVAL": 0.1}
    worker = listening(work())
    assert told(worker, delayq, True) < 2
    record.enqueue("while it is quiet")
    swept_at = worker.dispatcher.sweeper.at
    eventually(lambda: worker.dispatcher.sweeper.at > swept_at + 0.2)
    assert (seen, topic_stats("default").backlog) == ([], 1)
    assert eventually(lambda: delayq.workers.heartbeats()[worker.shared.name]["quiet"])
    assert told(worker, delayq, False) < 2
    eventually(lambda: seen == ["while it is quiet"])


def test_what_a_quiet_worker_holds_goes_on(work: Work, delayq: RedisStore) -> None:
    worker = listening(work())
    wait.enqueue()
    assert entered.wait(10)
    told(worker, delayq, True)
    gate.set()
    eventually(lambda: counters("waits").get("acked"))
    assert worker.dispatcher.quiet


def test_only_the_worker_that_is_named_is_quiet(work: Work, delayq: RedisStore) -> None:
    one, other = listening(work()), listening(work())
    told(one, delayq, True)
    record.enqueue_many([(n,) for n in range(20)])
    eventually(lambda: len(seen) == 20)
    assert (one.dispatcher.quiet, other.dispatcher.quiet) == (True, False)
    eventually(lambda: other.settled[Result.ACKED] == 20)
    assert one.settled[Result.ACKED] == 0


def test_worker_that_stops_is_forgotten_and_so_is_what_it_was_told(
    work: Work, delayq: RedisStore
) -> None:
    worker = listening(work())
    told(worker, delayq, True)
    worker.stop()
    assert not delayq.workers.is_quiet(worker.shared.name)


def test_topic_goes_on_by_itself_when_its_pause_ends(
    work: Work, settings: Any, delayq: RedisStore
) -> None:
    settings.DELAYQ = {**settings.DELAYQ, "SWEEP_INTERVAL": 30}
    listening(work())
    until = datetime.fromtimestamp(delayq.clock_ms() / 1000 + 0.5, tz=timezone.utc)
    pause_topic("default", until=until)
    record.enqueue(1)
    assert eventually(lambda: seen, 10)
    late = delayq.clock_ms() / 1000 - until.timestamp()
    assert 0 <= late < 2


def test_worker_takes_samples(work: Work, delayq: RedisStore) -> None:
    record.using(delay=3600).enqueue(1)
    work()
    (sample,) = eventually(lambda: delayq.queries.snapshot((), (), 5).samples)
    assert sample["waiting"] == 1
    # That of the topic follows a moment later.
    ((of_topic,),) = eventually(
        lambda: any(found := delayq.queries.topic_samples(["default"], 5)) and found
    )
    assert of_topic.waiting == 1


def test_a_worker_without_isolated_tasks_loads_nothing_of_them() -> None:
    code = (
        "import django, sys; django.setup(); import django_delayq.worker.process.runner; "
        "print([name for name in sys.modules if name.startswith('django_delayq.worker.isolated')])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "[]"
