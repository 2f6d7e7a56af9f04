"""Redis' clock as a worker sees it."""

from __future__ import annotations

import time

import pytest

from django_delayq.store import clock as module
from django_delayq.store.clock import ServerClock


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock in seconds; set the only element."""
    value = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: value[0])
    return value


def test_before_the_first_reading_it_is_this_machines_clock() -> None:
    clock = ServerClock()
    assert not clock.known
    assert clock.now_ms() == pytest.approx(time.time() * 1000, abs=5000)


def test_follows_a_reading_by_the_monotonic_clock(now: list[float]) -> None:
    clock = ServerClock()
    clock.sync(5_000_000_000)
    assert clock.known
    now[0] += 2.5
    assert clock.now_ms() == 5_002_500
    assert clock.at_ms(1001.0) == 5_001_000


def test_earliest_reading_is_the_best(now: list[float]) -> None:
    """A reading that was long on its way says too little; it must not make the worker late."""
    clock = ServerClock()
    clock.sync(5_000_000_000)
    now[0] += 1
    clock.sync(5_000_900_000)
    assert clock.now_ms() == pytest.approx(5_001_000, abs=1)
    clock.sync(5_001_200_000)
    assert clock.now_ms() == 5_001_200


def test_drift_is_followed(now: list[float]) -> None:
    clock = ServerClock()
    clock.sync(5_000_000_000)
    for _ in range(2000):
        now[0] += 1
        clock.sync(5_000_000_000 + int((now[0] - 1000) * 1e6) - 50_000)
    assert clock.now_ms() - (5_000_000 + (now[0] - 1000) * 1000) == pytest.approx(-50, abs=1)


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_jump_of_the_servers_clock_is_taken_at_once(now: list[float], jump_s: int) -> None:
    clock = ServerClock()
    clock.sync(50_000_000_000)
    clock.sync(50_000_000_000 + jump_s * 1_000_000)
    assert clock.now_ms() == 50_000_000 + jump_s * 1000
