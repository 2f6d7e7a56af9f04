"""Link.now_us(): Redis' clock for messages that SQL accepts before Redis hears of them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.store import breaker
from django_delayq.store import client as module
from django_delayq.store.store import RedisStore
from tests.faults import unreachable

HOUR_US = 3_600_000_000


class Clocks:
    """Redis' clock, an hour ahead, and the monotonic clock of this machine. Both are moved by
    hand."""

    def __init__(self, redis_us: int) -> None:
        self.redis_us = redis_us
        self.monotonic = 1000.0
        self.asked = 0
        self.away = False

    def command(self, name: str) -> tuple[int, int]:
        assert name == "TIME"
        self.asked += 1
        if self.away:
            raise StoreUnavailable("away")
        return divmod(self.redis_us, 1_000_000)

    def move(self, seconds: float) -> None:
        self.redis_us += int(seconds * 1e6)
        self.monotonic += seconds


@pytest.fixture
def clocks(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocks]:
    clocks = Clocks(int(time.time() * 1e6) + HOUR_US)
    monkeypatch.setattr(breaker, "PROBE_INTERVAL", 3600)
    monkeypatch.setattr(store.client, "command", clocks.command)
    monkeypatch.setattr(time, "monotonic", lambda: clocks.monotonic)
    yield clocks
    store.breaker.stop()


def test_it_is_the_clock_of_redis(store: RedisStore) -> None:
    before = store.clock_ms()
    assert int(before) <= store.now_us() / 1000 <= store.clock_ms() + 1


def test_it_follows_the_clock_of_redis_without_asking(store: RedisStore, clocks: Clocks) -> None:
    for seconds in (0, 5, module.CLOCK_REFRESH - 6):
        clocks.move(seconds)
        assert store.now_us() == pytest.approx(clocks.redis_us, abs=2)
    assert clocks.asked == 1


def test_redis_is_asked_again_after_a_while(store: RedisStore, clocks: Clocks) -> None:
    store.now_us()
    clocks.move(module.CLOCK_REFRESH)
    clocks.redis_us += 2 * HOUR_US
    assert store.now_us() == pytest.approx(clocks.redis_us, abs=2)
    assert clocks.asked == 2


def test_it_is_this_machines_clock_while_redis_was_never_reached(
    store: RedisStore, clocks: Clocks
) -> None:
    clocks.away = True
    assert abs(store.now_us() - time.time() * 1e6) < 5_000_000
    assert store.breaker.open


def test_what_was_known_counts_while_redis_is_away(store: RedisStore, clocks: Clocks) -> None:
    store.now_us()
    clocks.away = True
    clocks.move(2 * module.CLOCK_REFRESH)
    assert store.now_us() == pytest.approx(clocks.redis_us, abs=2)
    assert store.breaker.open


def test_an_open_breaker_costs_no_wait(store: RedisStore, clocks: Clocks) -> None:
    store.breaker.trip()
    store.now_us()
    assert clocks.asked == 0


def test_a_failure_is_not_repeated_at_every_call(store: RedisStore, clocks: Clocks) -> None:
    clocks.away = True
    for _ in range(3):
        store.now_us()
    assert clocks.asked == 1


def test_nothing_is_raised_when_redis_cannot_be_reached(store: RedisStore) -> None:
    with unreachable():
        assert abs(store.now_us() - time.time() * 1e6) < 5_000_000
        assert store.breaker.open
        store.breaker.stop()
