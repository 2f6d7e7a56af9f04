"""How a run ended, as a value."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from django_delayq.store.lease import Lease
from django_delayq.worker.outcome import Events, Outcome, Result
from django_delayq.worker.shared import Shared
from tests.tasks import noop

Claim = Callable[..., Lease]


def outcome(lease: Lease, ran_s: float | None = 0.25) -> Outcome:
    now = time.monotonic()
    if ran_s is not None:
        lease.started_at = now - ran_s
    return Outcome(lease, noop, Result.ACKED, now)


def test_run_time_is_that_of_the_task(claim: Claim) -> None:
    assert outcome(claim(noop), 0.25).run_ms == pytest.approx(250)


def test_what_never_started_ran_for_nothing(claim: Claim, shared: Shared) -> None:
    never = outcome(claim(noop), None)
    assert never.run_ms == 0
    assert never.event(shared.clock).lateness_ms > 0


def test_lateness_is_by_redis_clock(claim: Claim, shared: Shared) -> None:
    made = outcome(claim(noop))
    started_ms = shared.clock.now_ms() - 250
    assert made.event(shared.clock).lateness_ms == pytest.approx(started_ms - made.lease.due_at_ms, abs=50)


def test_damaged_message_has_an_event_too(claim: Claim, shared: Shared) -> None:
    for damage in (b"", b"\x10" * 40):
        lease = claim(noop.using(key=f"k{len(damage)}"))
        lease.record = damage
        event = Outcome(lease, None, Result.DEAD, time.monotonic(), "undecodable").event(shared.clock)
        assert (event.id, event.task, event.key, event.reason) == (lease.id.hex(), "", None, "undecodable")


def test_events_are_a_sequence_that_builds_on_demand(claim: Claim, shared: Shared) -> None:
    outcomes = [outcome(claim(noop.using(key=f"k{n}"))) for n in range(5)]
    events = Events(outcomes, shared.clock)
    assert len(events) == 5
    assert [event.key for event in events] == [f"k{n}" for n in range(5)]
    assert [event.key for event in events[1:3]] == ["k1", "k2"]
    assert events[-1].key == "k4"
    with pytest.raises(IndexError):
        events[5]
