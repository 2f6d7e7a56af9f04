"""Runs are counted in memory that all processes of a command share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from django_delayq.integrations import run_counts
from django_delayq.integrations.run_counts import RunCounts
from django_delayq.store.keys import Partition
from django_delayq.worker.outcome import Events
from tests.app.tasks import act, close_order, record
from tests.hands import ORDERS, Hands


@pytest.fixture
def counts() -> Iterator[RunCounts]:
    counts = RunCounts(2, limit=3)
    counts.begin(0)
    yield counts
    counts.end()


def in_a_child(work: Callable[[], None]) -> None:
    """Fork, work there, and wait for its end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def results(counts: RunCounts) -> dict[tuple[str, str], dict[str, int]]:
    """What is not zero."""
    return {
        (row.topic, row.task.rpartition(".")[2]): {
            result: count
            for result, count in zip(run_counts.RESULTS, row.results, strict=True)
            if count
        }
        for row in counts.read()
    }


def test_each_run_counts_by_its_end(counts: RunCounts, hands: Hands) -> None:
    record.enqueue_many([(n,) for n in range(3)])
    hands.work()
    act.enqueue("reject")
    act.enqueue("fail")
    act.enqueue("snooze")
    hands.work(Partition("modes", 0))
    close_order.enqueue(1)
    hands.work(ORDERS)
    assert results(counts) == {
        ("default", "record"): {"acked": 3},
        ("modes", "act"): {"dead": 1, "retried": 1, "snoozed": 1},
        ("orders", "close_order"): {"acked": 1},
    }


def test_lateness_and_run_time_fall_into_buckets(counts: RunCounts) -> None:
    times = {"shop.pay": ([0.5, 1.0, 3.0, 700_000.0], [0.2, 30.0, 1_000.0, 2_000_000.0])}
    events = Events([], None)  # type: ignore[arg-type]
    events.times = lambda: times  # type: ignore[method-assign]
    counts._receive(0, "orders", events)  # type: ignore[arg-type]
    (row,) = counts.read()
    ends = [*run_counts.LATENESS_S, "more"]
    filled = {end: n for end, n in zip(ends, row.lateness, strict=True) if n}
    assert filled == {0.001: 2, 0.005: 1, "more": 1}
    ends = [*run_counts.RUN_S, "more"]
    filled = {end: n for end, n in zip(ends, row.run, strict=True) if n}
    assert filled == {0.001: 1, 0.05: 1, 1: 1, "more": 1}
    assert row.lateness_sum == pytest.approx(700.0045) and row.run_sum == pytest.approx(2001.0302)


def test_a_message_that_did_not_run_counts_not(counts: RunCounts, hands: Hands) -> None:
    record.enqueue(1)
    leases = hands.claim()
    for lease in leases:
        lease.renewed_at -= 3600  # it has ended: the executor gives it back
    hands.run(*leases)
    assert results(counts) == {}


def test_topics_and_tasks_beyond_the_limit_count_as_others(counts: RunCounts) -> None:
    for n in range(5):
        at = counts._add(f"topic{n}", "task")
        counts._numbers[at] += 1
    assert results(counts) == {
        ("other", "other"): {"acked": 2},
        **{(f"topic{n}", "task"): {"acked": 1} for n in range(3)},
    }


def test_one_process_reads_what_all_have_counted(counts: RunCounts, hands: Hands) -> None:
    def count_there() -> None:
        counts.begin(1)
        at = counts._add("default", "tests.app.tasks.record")
        counts._numbers[at] += 5

    record.enqueue(1)
    hands.work()
    in_a_child(count_there)
    assert results(counts) == {("default", "record"): {"acked": 6}}


def test_a_process_that_replaces_another_counts_on(counts: RunCounts) -> None:
    def count_there() -> None:
        counts.begin(1)
        at = counts._rows.get(("mail", "send")) or counts._add("mail", "send")
        counts._numbers[at] += 1

    in_a_child(count_there)
    in_a_child(count_there)
    assert results(counts) == {("mail", "send"): {"acked": 2}}


def test_nothing_counts_after_the_end(hands: Hands) -> None:
    counts = RunCounts(1, limit=3)
    counts.begin(0)
    counts.end()
    record.enqueue(1)
    hands.work()
    assert results(counts) == {}
