"""How a run ended, as a value."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_delayq.store.lease import Lease
from django_delayq.worker.outcome import Events, Outcome, Result
from django_delayq.worker.shared import Shared
from tests.app.tasks import noop

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
    assert made.event(shared.clock).lateness_ms == pytest.approx(
        started_ms - made.lease.attempts.due_at_ms, abs=50
    )


def test_damaged_message_has_an_event_too(claim: Claim, shared: Shared) -> None:
    for damage in (b"", b"\x10" * 40):
        lease = claim(noop.using(key=f"k{len(damage)}"))
        lease.record = damage
        event = Outcome(lease, None, Result.DEAD, time.monotonic(), "undecodable").event(
            shared.clock
        )
        assert (event.id, event.task, event.key, event.reason) == (
            lease.id.hex(),
            "",
            None,
            "undecodable",
        )


def detail(made: Outcome, shared: Shared) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(made.detail(shared.name, shared.clock))
    return content


def test_of_an_acked_one_the_archive_knows_worker_start_and_run(
    claim: Claim, shared: Shared
) -> None:
    said = detail(outcome(claim(noop), 0.25), shared)
    assert set(said) == {"worker", "started_ms", "run_ms"}
    assert said["worker"] == shared.name
    assert said["run_ms"] == pytest.approx(250, abs=0.01)
    assert said["started_ms"] == pytest.approx(shared.clock.now_ms() - 250, abs=50)


def failed(lease: Lease, result: Result) -> Outcome:
    made = outcome(lease)
    made.result, made.reason = result, "failed"
    made.error_class, made.error_message, made.traceback = (
        "shop.errors.NoStock",
        'none "left" 😀',
        "Traceback ...",
    )
    return made


def test_of_a_dead_one_the_archive_knows_why_in_parts(claim: Claim, shared: Shared) -> None:
    said = detail(failed(claim(noop), Result.DEAD), shared)
    assert set(said) == {
        "worker",
        "started_ms",
        "run_ms",
        "reason",
        "error",
        "message",
        "traceback",
    }
    assert (said["reason"], said["error"], said["message"], said["traceback"]) == (
        "failed", "shop.errors.NoStock", 'none "left" 😀', "Traceback ...",
    )  # fmt: skip


@pytest.mark.parametrize("result", [Result.RETRIED, Result.SNOOZED])
def test_of_one_that_goes_on_its_history_gets_a_line(
    claim: Claim, shared: Shared, result: Result
) -> None:
    made = failed(claim(noop), result)
    made.error_message = "x" * 100_000
    raw = made.detail(shared.name, shared.clock)
    assert b"\n" not in raw
    said = json.loads(raw)
    assert (said["outcome"], said["worker"]) == (result.value, shared.name)
    assert said["ended_ms"] - said["started_ms"] == pytest.approx(250, abs=1)
    assert said["error"].startswith("NoStock: xxx")
    assert len(said["error"]) < 1000


def test_people_read_the_last_part_of_the_class_and_the_message(claim: Claim) -> None:
    made = failed(claim(noop), Result.DEAD)
    assert made.text == 'NoStock: none "left" 😀'
    made.error_class = ""
    assert made.text == "failed"


def test_events_are_a_sequence_that_builds_on_demand(claim: Claim, shared: Shared) -> None:
    outcomes = [outcome(claim(noop.using(key=f"k{n}"))) for n in range(5)]
    events = Events(outcomes, shared.clock)
    assert len(events) == 5
    assert [event.key for event in events] == [f"k{n}" for n in range(5)]
    assert [event.key for event in events[1:3]] == ["k1", "k2"]
    assert events[-1].key == "k4"
    with pytest.raises(IndexError):
        events[5]
