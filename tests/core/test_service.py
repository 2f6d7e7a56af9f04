"""The one loop and the one sleep."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest

from django_delayq.core import log
from django_delayq.core import service as module
from django_delayq.core.exceptions import StoreUnavailable
from django_delayq.core.service import Service, Sleeper
from django_delayq.worker.dispatcher import Dispatcher
from tests.worker.moving import eventually, unformattable


class Steps(Service):
    """Does what it is told, one step after another, then stops."""

    name = "steps"

    def __init__(self, *steps: float | BaseException) -> None:
        super().__init__()
        self.steps = list(steps)
        self.slept: list[float] = []
        self.sleeper.wait = self.slept.append  # type: ignore[method-assign]

    def run_once(self) -> float:
        step = self.steps.pop(0)
        self.stopping = not self.steps
        if isinstance(step, BaseException):
            raise step
        return step

    def finish(self) -> list[float]:
        self.start()
        self.join(5)
        return self.slept


def test_sleeps_as_long_as_the_run_says() -> None:
    assert Steps(0.0, 5.0, 0.25).finish() == [0.0, 5.0, 0.25]


def test_redis_that_is_away_is_said_once_and_tried_again_more_slowly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.random, "uniform", lambda low, high: high)
    monkeypatch.setattr(Steps, "reports_outages", True)
    with caplog.at_level(logging.WARNING, "delayq"):
        slept = Steps(*[StoreUnavailable("down")] * 6, 1.0, StoreUnavailable("down"), 0.0).finish()
    assert slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 0.1, 0.0])
    assert [record.message for record in caplog.records] == ["steps: down", "steps: down"]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("down"), ValueError("a bug")], ids=["outage", "bug"]
)
def test_a_very_long_outage_does_not_end_it(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "delayq"):
        slept = Steps(*[error] * 2_000, 7.0).finish()
    assert (len(slept), slept[-1]) == (2_001, 7.0)


def test_only_one_service_says_that_redis_is_away(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "delayq"):
        Steps(StoreUnavailable("down"), 0.0).finish()
    assert caplog.records == []
    assert [kind for kind in Service.__subclasses__() if kind.reports_outages] == [Dispatcher]


def test_workers_do_not_come_back_in_step() -> None:
    pauses = {Steps(StoreUnavailable("down"), 0.0).finish()[0] for _ in range(5)}
    assert len(pauses) == 5
    assert all(0.05 <= pause <= 0.1 for pause in pauses)


def test_bug_ends_neither_the_thread_nor_the_log(caplog: pytest.LogCaptureFixture) -> None:
    slept = Steps(ValueError("a bug"), ValueError("a bug"), 3.0).finish()
    assert slept == pytest.approx([0.2, 0.4, 3.0])
    assert "steps failed; it tries again in 0.2 s" in caplog.text
    assert "ValueError: a bug" in caplog.text


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), unformattable()]
)
def test_thread_outlives_whatever_is_raised(
    error: BaseException, capfd: pytest.CaptureFixture[str]
) -> None:
    """A receiver of signals may raise what is meant to end a program."""
    assert Steps(error, 3.0).finish() == pytest.approx([0.2, 3.0])


def test_log_that_fails_does_not_end_the_thread(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(log.logging.Logger, "error", fail)
    assert Steps(ValueError("a bug"), 3.0).finish() == pytest.approx([0.2, 3.0])
    assert "steps failed; it tries again in 0.2 s: ValueError" in capfd.readouterr().err


def test_database_connections_are_looked_at_after_each_run_and_closed_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    did: list[str] = []
    monkeypatch.setattr(module, "close_broken", lambda: did.append("look"))
    monkeypatch.setattr(module, "close_all", lambda: did.append("close"))
    Steps(0.0, ValueError("a bug"), 3.0).finish()
    assert did == ["look", "look", "look", "close"]


class Idle(Service):
    """Counts its runs and sleeps long."""

    runs = 0

    def run_once(self) -> float:
        self.runs += 1
        return 60.0


def test_stop_ends_a_sleep() -> None:
    service = Idle()
    service.start()
    eventually(lambda: service.runs)
    service.stop()
    begun = time.monotonic()
    service.join(10)
    assert time.monotonic() - begun < 5
    assert not service._thread.is_alive()  # type: ignore[union-attr]


def test_wake_makes_it_run() -> None:
    service = Idle()
    service.start()
    eventually(lambda: service.runs == 1)
    service.sleeper.wake()
    eventually(lambda: service.runs == 2)
    service.stop()


def test_join_before_the_start_is_nothing() -> None:
    Idle().join(1)


def test_wake_before_a_sleep_counts_once() -> None:
    sleeper = Sleeper()
    sleeper.wake()
    sleeper.wake()
    begun = time.monotonic()
    sleeper.wait(30)
    assert time.monotonic() - begun < 5
    sleeper.wait(0.0)
    assert sleeper._lock.locked()


@pytest.mark.parametrize("seconds", [-1, 0, float("-inf")])
def test_sleep_of_nothing_returns(seconds: float) -> None:
    Sleeper().wait(seconds)


def test_many_may_wake_at_once() -> None:
    sleeper = Sleeper()
    threads = [
        threading.Thread(target=lambda: [sleeper.wake() for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(50):
        sleeper.wait(0.001)
    for thread in threads:
        thread.join()
    sleeper.wake()
    sleeper.wait(5)
