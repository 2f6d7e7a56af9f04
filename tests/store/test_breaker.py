"""breaker.py: after one failure nobody waits for Redis until a probe has reached it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.store import breaker as module
from django_delayq.store.breaker import CircuitBreaker
from django_delayq.store.store import RedisStore
from tests.faults import unreachable
from tests.servers import wait_until


class Probe:
    """Redis, seen by the breaker: away until it is told to be back."""

    def __init__(self) -> None:
        self.back = False
        self.threads: list[threading.Thread] = []
        self.asked = threading.Event()

    def __call__(self) -> None:
        self.threads.append(threading.current_thread())
        self.asked.set()
        if not self.back:
            raise StoreUnavailable("away")


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.001)
    return Probe()


@pytest.fixture
def breaker(probe: Probe) -> Iterator[CircuitBreaker]:
    breaker = CircuitBreaker(probe)
    yield breaker
    breaker.stop()
    wait_until(lambda: not watchers(), "the thread has ended")


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "delayq-breaker"]


def test_it_is_closed_until_a_call_fails(breaker: CircuitBreaker, probe: Probe) -> None:
    assert not breaker.open
    assert (probe.threads, watchers()) == ([], [])


def test_a_failure_opens_it_at_once(breaker: CircuitBreaker) -> None:
    breaker.trip()
    assert breaker.open


def test_a_thread_of_its_own_finds_out_that_redis_is_back(
    breaker: CircuitBreaker, probe: Probe
) -> None:
    breaker.trip()
    assert probe.asked.wait(10)
    assert breaker.open
    probe.back = True
    wait_until(lambda: not breaker.open, "the breaker is closed")
    assert threading.current_thread() not in probe.threads
    assert all(thread.daemon for thread in probe.threads)


def test_it_probes_until_redis_is_back_and_then_no_more(
    breaker: CircuitBreaker, probe: Probe
) -> None:
    breaker.trip()
    wait_until(lambda: len(probe.threads) >= 3, "it probes again")
    probe.back = True
    wait_until(lambda: not watchers(), "the thread has ended")
    assert not breaker.open


def test_it_waits_before_it_probes(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 3600)
    breaker = CircuitBreaker(probe)
    breaker.trip()
    assert breaker.open
    breaker.stop()
    wait_until(lambda: not watchers(), "the thread has ended, an hour before its probe")
    assert probe.threads == []


def test_many_failures_are_one_thread(breaker: CircuitBreaker) -> None:
    for _ in range(5):
        breaker.trip()
    assert len(watchers()) == 1


def test_it_opens_again_after_the_next_failure(breaker: CircuitBreaker, probe: Probe) -> None:
    for _ in range(2):
        probe.back = False
        breaker.trip()
        assert breaker.open
        probe.back = True
        wait_until(lambda: not breaker.open, "the breaker is closed")


def test_a_fork_does_not_inherit_it_open(
    breaker: CircuitBreaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker.trip()
    assert breaker.open
    with monkeypatch.context() as child:
        child.setattr(module.os, "getpid", lambda: -5)
        assert not breaker.open
        breaker.trip()
        assert breaker.open
        assert (
            len(watchers()) == 2
        )  # that of the parent, which a real child would not have, and its own
    assert not breaker.open  # what the child does is not the parent's, but they share this object


def test_stopping_ends_the_thread_and_closes_for_good(breaker: CircuitBreaker) -> None:
    breaker.trip()
    breaker.stop()
    wait_until(lambda: not watchers(), "the thread has ended")
    assert not breaker.open
    breaker.trip()
    assert (breaker.open, watchers()) == (False, [])


def test_the_stores_breaker_asks_redis(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_INTERVAL", 0.001)
    with unreachable():
        store.breaker.trip()
        assert store.breaker.open
    wait_until(lambda: not store.breaker.open, "the breaker is closed")


def test_a_closed_store_has_no_thread(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.client, "redis", type("Client", (), {"close": lambda self: None})())
    store.breaker.trip()
    store.close()
    wait_until(lambda: not watchers(), "the thread has ended")
    assert not store.breaker.open
