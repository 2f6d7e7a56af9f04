"""What a heartbeat says of that which runs."""

from __future__ import annotations

import threading
import time
from typing import Any

from django_delayq.worker import run_report
from django_delayq.worker.run_report import described_runs
from tests.app.tasks import close_order, record
from tests.hands import Hands


def leases(hands: Hands, *ages: float) -> list[Any]:
    """Messages of the topic default that began so many seconds ago."""
    for number in range(len(ages)):
        record.enqueue(number)
    hands._next_millisecond()
    claimed = list(hands.store.claim(hands.store.topics.used_partitions()[0], 100).leases)
    for lease, age in zip(claimed, ages, strict=True):
        lease.started_at = time.monotonic() - age
    return claimed


def test_tasks_are_counted_and_the_oldest_is_told(hands: Hands) -> None:
    first, second = leases(hands, 60, 5)
    said = described_runs([(first, threading.current_thread()), (second, None)])
    ((topic, task, count, since_ms),) = said["tasks"]
    assert (topic, task, count) == ("default", record.name, 2)
    assert abs(time.time() * 1000 - since_ms - 60_000) < 2_000
    assert said["begun"][first.id.hex()][1] == threading.current_thread().name
    assert said["begun"][second.id.hex()][1] == ""


def test_what_waits_for_its_thread_has_not_begun(hands: Hands) -> None:
    (lease,) = leases(hands, 1)
    lease.started_at = 0.0
    assert described_runs([(lease, None)]) == {"tasks": [], "begun": {}}


def test_a_heartbeat_stays_small(hands: Hands, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_report, "MOST_BEGUN", 2)
    many = leases(hands, 1, 30, 20, 10)
    said = described_runs([(lease, None) for lease in many])
    assert said["tasks"][0][2] == 4
    assert list(said["begun"]) == [many[1].id.hex(), many[2].id.hex()]
    assert close_order.name not in str(said)
