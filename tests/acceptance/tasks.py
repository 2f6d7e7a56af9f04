"""What the worker processes run. Every run writes a line of the history first, so that nothing of
it is lost."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async

from django_delayq import Batch, Reject, constant, current_message, delayed_task

#: A gate that is never opened must not keep a process for ever.
GATE_SECONDS = 60.0


@cache
def _history() -> int:
    return os.open(os.environ["DELAYQ_TEST_HISTORY"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(what: str = "start") -> int:
    """One write() of one line: it is there, whole, even when the process is killed right after.
    Returns the attempt."""
    now, message = time.time(), current_message()
    os.write(
        _history(), f"{message.id} {message.attempt} {now:.6f} {os.getpid()} {what}\n".encode()
    )
    return message.attempt


@delayed_task
def note(*args: Any) -> None:
    """Nothing but the line."""
    write()


@delayed_task
def reject() -> None:
    """Dead at once."""
    write()
    raise Reject("never")


#: Messages of one call of close_many, at most.
CALL = 50


@delayed_task(ttr=2, batch=CALL, linger=0.02)
def close_many(messages: Batch[float]) -> None:
    """A call that has its effect at the end, for all of its messages: as one UPDATE has."""
    for what in ("start", "done"):
        lines = [
            f"{message.id} {message.attempt} {time.time():.6f} {os.getpid()} {what}\n"
            for message in messages
        ]
        os.write(_history(), "".join(lines).encode())
        if what == "start":
            time.sleep(sum(message.args[0] for message in messages))


@delayed_task(ttr=2)
def work(seconds: float) -> None:
    """A task that takes its time."""
    write()
    time.sleep(seconds)


@delayed_task(ttr=1)
def spin(seconds: float) -> None:
    """Works in Python all the time: the lease keeper competes for the GIL."""
    write()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    write("done")


@delayed_task(ttr=1)
def hold(gate: str) -> None:
    """Runs until the test opens the gate of this attempt."""
    attempt = write()
    until = time.monotonic() + GATE_SECONDS
    while not Path(f"{gate}.{attempt}").exists() and time.monotonic() < until:
        time.sleep(0.005)
    write("done")


@delayed_task(ttr=1, max_runtime=1)
def overrun(seconds: float) -> None:
    """The first run takes longer than it may."""
    if write() == 1:
        time.sleep(seconds)


@delayed_task(topic="async", ttr=1, max_runtime=1, backoff=constant(0.1))
async def overrun_async(seconds: float) -> None:
    """The first run takes longer than it may, and is cancelled."""
    if write() == 1:
        await asyncio.sleep(seconds)
        write("done")


@delayed_task
def use_own_threads(seconds: float) -> None:
    """What it does, it does on threads of its own: the interpreter waits for them."""
    with ThreadPoolExecutor(1) as threads:
        write()
        threads.submit(time.sleep, seconds).result()


@delayed_task(topic="async")
async def use_lent_thread(seconds: float) -> None:
    """As every call of the ORM in a coroutine does."""
    write()
    await sync_to_async(time.sleep)(seconds)


@delayed_task(topic="paced", rate="50/s")
def paced(number: int) -> None:
    """No more than so many a second."""
    write()


@delayed_task(topic="keyed", ttr=2, limit_by="customer:{customer}", concurrency=2)
def keyed(customer: int, seconds: float) -> None:
    """Two at a time for each customer."""
    write(f"start:{customer}")
    time.sleep(seconds)
    write(f"done:{customer}")


@delayed_task(topic="keyed", ttr=1, limit_by="alone", concurrency=1)
def alone(gate: str) -> None:
    """One at a time; runs until the test opens the gate of this attempt."""
    attempt = write()
    until = time.monotonic() + GATE_SECONDS
    while not Path(f"{gate}.{attempt}").exists() and time.monotonic() < until:
        time.sleep(0.005)


@delayed_task(max_attempts=3, backoff=constant(0))
def fail_odd(number: int) -> None:
    """Odd numbers fail at every attempt."""
    write()
    if number % 2:
        raise ValueError("odd")


@delayed_task(backoff=constant(0.7))
def fail_once(*args: Any) -> None:
    """The first attempt fails."""
    if write() == 1:
        raise ValueError("the first attempt")


@delayed_task(ttr=1)
def crash(how: str) -> None:
    """Takes its whole process along."""
    write()
    if how == "exit":
        os._exit(1)
    ctypes.string_at(0)


@delayed_task
def stop_worker(*args: Any) -> None:
    """Stops the worker that runs it."""
    write()
    os.kill(os.getpid(), signal.SIGTERM)
    write("done")


if os.environ.get("DELAYQ_TEST_CODE") != "old":

    @delayed_task
    def newcomer() -> None:
        """Not yet there in the worker that has the old code."""
        write()


if os.environ.get("DELAYQ_TEST_CODE") != "new":

    @delayed_task
    def leaver() -> None:
        """No longer there in the worker that has the new code."""
        write()


def _grown(number: int, note: str = "") -> None:
    """Its newest parameter is not yet there in the worker that has the old code."""
    write()


def _before_it_grew(number: int) -> None:
    write()


_version = _before_it_grew if os.environ.get("DELAYQ_TEST_CODE") == "old" else _grown
grown = delayed_task(name="tests.acceptance.tasks.grown")(_version)


@delayed_task
def say_version() -> None:
    """Notes the version of a module that a test changes while the worker runs."""
    write(str(importlib.import_module("changing").VERSION))


if os.environ.get("DELAYQ_TEST_CODE") == "twice":

    @delayed_task(name="tests.acceptance.tasks.note")
    def another_note() -> None:
        """Takes a name that is taken."""


if "DELAYQ_TEST_CHANGING" in os.environ:
    import changing  # noqa: F401 - the reloader looks at what is imported


if os.environ.get("DELAYQ_TEST_RECURRING"):
    BERLIN: dict[str, Any] = {"time_zone": "Europe/Berlin", "missed": "all"}

    @delayed_task(cron="30 2 * * *", **BERLIN)
    def nightly() -> None:
        """In the hour that a clock skips, or has twice."""
        write(f"nightly {current_message().tick}")

    @delayed_task(cron="0 * * * *", max_attempts=2, backoff=constant(0), **BERLIN)
    def hourly() -> None:
        """Each run needs a second attempt."""
        if current_message().attempt == 1:
            raise ValueError("the first attempt")
        write(f"hourly {current_message().tick}")

    @delayed_task(every=3600, missed="skip")
    def skipping() -> None:
        """Makes up for nothing."""
        write(f"skipping {current_message().tick}")

    @delayed_task(every=3600, missed="once")
    def once() -> None:
        """Makes up for the newest tick."""
        write(f"once {current_message().tick}")


@delayed_task(topic="async", ttr=2)
async def wait_long() -> None:
    """A coroutine that somebody cancels."""
    write()
    try:
        await asyncio.sleep(GATE_SECONDS)
        write("done")
    except asyncio.CancelledError:
        write("cancelled")
        raise


@delayed_task(ttr=30)
def watch_lease() -> None:
    """A thread that looks whether it has lost its lease."""
    write()
    message = current_message()
    until = time.monotonic() + GATE_SECONDS
    while not message.lease_lost and time.monotonic() < until:
        time.sleep(0.02)
    write("lost" if message.lease_lost else "done")


if os.environ.get("DELAYQ_TEST_CODE") == "apart":
    from tests.acceptance import isolated_tasks  # noqa: F401 - a worker with these starts a child

if os.environ.get("DELAYQ_TEST_TARGET"):
    from tests.acceptance import forward_tasks  # noqa: F401

if seconds := os.environ.get("DELAYQ_TEST_ALERTS_EVERY"):
    from django_delayq.stats.alerts import alerter

    alerter.INTERVAL = 2 * float(seconds)
    alerter.Alerter.interval = float(seconds)
