"""One worker in this process, from its first signal handler to its exit code."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_delayq.core import signals
from django_delayq.core.conf import get_settings
from django_delayq.core.exceptions import ConfigurationError
from django_delayq.store import get_store
from django_delayq.store.keys import wakeups_channel
from django_delayq.store.store import RedisStore
from django_delayq.tasks import registry
from django_delayq.worker.process import runner
from django_delayq.worker.process.health import Address
from django_delayq.worker.process.runner import ExitCode, run
from django_delayq.worker.worker import Worker, WorkerOptions
from tests.app.tasks import entered, gate, hang, record, seen, wait
from tests.worker.moving import LONG_AGO, counters, eventually


@pytest.fixture
def worker(delayq: RedisStore) -> Iterator[Callable[..., Worker]]:
    """A worker that is not started."""

    def make(**options: Any) -> Worker:
        topics = tuple(sorted(registry.known_topics()))
        merged = {"topics": topics, "concurrency": 1, "shutdown_timeout": 5.0} | options
        return Worker(get_store(), get_settings(), WorkerOptions(**merged))

    before = set(threading.enumerate())
    yield make
    gate.set()
    delayq.client.redis.publish(wakeups_channel(delayq.client.prefix), "the end")
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("delayq"):
            thread.join(5)


@pytest.fixture
def later() -> Iterator[Callable[[Callable[[], Any], Callable[[], Any]], None]]:
    """Does something in another thread once a condition is true."""
    threads: list[threading.Thread] = []

    def start(condition: Callable[[], Any], action: Callable[[], Any]) -> None:
        threads.append(threading.Thread(target=lambda: eventually(condition) and action()))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join(10)


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def test_burst_ends_with_0(worker: Any) -> None:
    record.using(due_at=LONG_AGO).enqueue("x")
    assert run(worker(burst=True)) == ExitCode.OK == 0
    assert seen == ["x"]


def test_it_says_nothing_more_when_it_has_ended(worker: Any) -> None:
    before = len(signals.acked.receivers)
    run(worker(burst=True))
    assert len(signals.acked.receivers) == before


def test_max_messages_ends_with_0(worker: Any) -> None:
    record.using(due_at=LONG_AGO).enqueue_many([(n,) for n in range(5)])
    assert run(worker(max_messages=3)) == 0
    assert len(seen) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains(
    worker: Any, later: Any, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delayq")
    wait.enqueue()
    later(entered.is_set, lambda: (send(number)(), gate.set()))
    assert run(worker()) == 0
    assert counters("waits")["acked"] == 1
    assert (
        "stopped in 0.0 s · 1 acked · 0 abandoned" in caplog.text
        or "1 acked · 0 abandoned" in caplog.text
    )


def test_handlers_are_those_of_before_again(worker: Any) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    run(worker(burst=True))
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_tasks_that_are_abandoned_end_with_4(
    worker: Any, later: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "delayq")
    wait.enqueue()
    later(entered.is_set, send(signal.SIGTERM))
    assert run(worker(shutdown_timeout=0.05)) == ExitCode.ABANDONED == 4
    assert "draining: 1 running, 0 handed back (at most 0 s)" in caplog.text
    assert "1 abandoned" in caplog.text


def test_worker_that_is_stuck_ends_with_6(worker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    hang.enqueue()
    assert run(worker(shutdown_timeout=0.05)) == ExitCode.STUCK == 6


def test_second_signal_ends_at_once(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[int] = []
    now = [100.0]
    monkeypatch.setattr(runner.os, "_exit", ends.append)
    monkeypatch.setattr(runner.time, "monotonic", lambda: now[0])
    made, requested = worker().progress, list[float]()
    runner._request(requested, signal.SIGTERM, made)
    runner._request(requested, signal.SIGTERM, made)
    assert ends == []
    now[0] += 1
    runner._request(requested, signal.SIGTERM, made)
    assert ends == [143]


def test_signal_in_the_middle_of_anything_holds_up_nothing(worker: Any) -> None:
    """A handler runs between two lines of the main thread, perhaps those of the very wait that it
    is to end."""
    made, requested, main = (
        worker().progress,
        [time.monotonic() + 3600],
        threading.main_thread().ident,
    )
    assert main is not None
    old = signal.signal(
        signal.SIGUSR1, lambda number, frame: runner._request(requested, number, made)
    )
    told = threading.Event()

    def tell() -> None:
        while not told.wait(0.00005):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        while len(requested) < 3_000:
            made.wait(0.00005)
    finally:
        told.set()
        thread.join()
        signal.signal(signal.SIGUSR1, old)


def test_changed_code_drains_and_asks_to_start_anew(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed:
        def __init__(self, on_change: Callable[[], None]) -> None:
            self.start = on_change

    monkeypatch.setattr(runner, "Reloader", Changed)
    assert run(worker(), reload=True) == ExitCode.START_ANEW
    assert run(worker(burst=True)) == ExitCode.OK


def test_start_anew_is_the_same_command_in_the_same_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[list[str]] = []
    monkeypatch.setattr(runner.os, "execv", lambda path, arguments: begun.append(arguments))
    runner.start_anew()
    assert begun == [[sys.executable, *sys.orig_argv[1:]]]


def test_health_port_answers_while_it_works(
    worker: Any, later: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    real = runner.probes

    @contextmanager
    def probes(*args: Any) -> Iterator[None]:
        with real(*args) as port:
            ports.append(port)
            yield

    monkeypatch.setattr(runner, "probes", probes)
    wait.enqueue()

    def probe() -> None:
        with socket.create_connection(("127.0.0.1", ports[0]), 5) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            seen.append(connection.recv(100).split()[1])
        gate.set()
        send(signal.SIGTERM)()

    later(entered.is_set, probe)
    assert run(worker(), Address("127.0.0.1", 0)) == 0
    assert seen == [b"200"]
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", ports[0]), 1)


def test_port_that_is_taken_is_an_error_of_the_configuration(worker: Any) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigurationError, match="health-port"),
    ):
        run(worker(burst=True), Address("127.0.0.1", taken.getsockname()[1]))
