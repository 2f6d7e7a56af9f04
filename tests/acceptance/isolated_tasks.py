"""Tasks that run in child processes. A worker has them when a test says so: it would start a child in
each other test too."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from django.db import transaction

from django_delayq import Reject, Snooze, constant, current_message, delayed_task
from tests.acceptance.tasks import GATE_SECONDS, write

if Path(os.environ.get("DELAYQ_TEST_BROKEN", "/no such file")).exists():
    raise RuntimeError("the code is damaged")


@delayed_task(topic="apart", isolate=True, ttr=2)
def apart(seconds: float = 0.0) -> None:
    """Notes the process that runs it."""
    write()
    time.sleep(seconds)
    write("done")


@delayed_task(topic="apart", isolate=True, max_attempts=1)
def leave_open() -> None:
    """Leaves a transaction open."""
    write("in a transaction" if transaction.get_connection().in_atomic_block else "start")
    transaction.atomic().__enter__()


@delayed_task(
    topic="apart", isolate=True, ttr=2, max_runtime=1, backoff=constant(0), max_attempts=2
)
def hang_apart(how: str) -> None:
    """Never ends by itself."""
    write()
    if how == "sleep":
        time.sleep(GATE_SECONDS)
    elif how == "spin":
        while True:
            pass
    elif how == "gil":  # one C call that holds the interpreter
        sum(range(10**13))
    elif how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "deaf":
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        time.sleep(GATE_SECONDS)
    elif how == "program":
        subprocess.run(["sleep", "61.5"], check=True)
    write("done")


@delayed_task(
    topic="apart", isolate=True, memory_limit="160MiB", backoff=constant(0), max_attempts=2
)
def eat_memory() -> None:
    """Takes more and more."""
    write()
    eaten = []
    while True:
        eaten.append(b"x" * 1_000_000)


@delayed_task(topic="apart", isolate=True, ttr=2, max_attempts=1)
def die_apart(how: str) -> None:
    """Takes its child process along."""
    write()
    if how == "exit":
        os._exit(3)
    elif how == "fork":  # the other process has the socket too
        if os.fork():
            os._exit(4)
        time.sleep(GATE_SECONDS)
    elif how == "close":
        os.closerange(3, 200)
        return
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    ctypes.string_at(0)


@delayed_task(topic="apart", isolate=True, result=True, ttr=1, max_runtime=1, max_attempts=1)
def report_apart(what: str) -> Any:
    """What a task can ask and say."""
    attempt, message = write(), current_message()
    if what == "message":
        message.progress(3, 10, "pages")
        return [message.key, message.headers, attempt, os.getpid(), os.getppid(), sys.argv[-1]]
    if what == "extend":
        message.extend(5)
        time.sleep(1.6)
        return "extended"
    if what == "much":
        return "x" * 1_000_000
    if what == "progress":
        message.progress(1, 2)
        os._exit(1)
    if what == "snooze" and message.headers == {}:
        raise Snooze(3600)
    if what == "reject":
        raise Reject("no such thing")
    raise Unpicklable(open(os.devnull))  # noqa: SIM115


#: In workers only: nobody could search for an argument in other tests of the process.
SECRET = ("card",) if os.environ.get("DELAYQ_TEST_CODE") else ()


@delayed_task(topic="apart", isolate=True, ttr=1, max_runtime=1, max_attempts=1, secret=SECRET)
def pay_apart(how: str, card: str) -> None:
    """Says what it must not."""
    write()
    if how == "hang":
        time.sleep(GATE_SECONDS)
    if how == "reject":
        raise Reject(f"{card} is refused")
    try:
        raise LookupError(f"no {card}")
    except LookupError as error:
        raise ValueError(f"{card} is refused") from error


@delayed_task(topic="apart", isolate=True)
def flood() -> None:
    """Has much to say."""
    message = current_message()
    for number in range(20_001):
        message.progress(number, 20_000)


@delayed_task(topic="apart", isolate=True, ttr=1, max_attempts=500, backoff=constant(0))
def try_often(seconds: float) -> None:
    """Runs until it gets through."""
    write()
    time.sleep(seconds)
    write("done")


def surround(run: Any) -> Any:
    """A middleware that says where it runs."""

    def layer(message: Any) -> None:
        write("begin")
        run(message)
        write("end")

    return layer


class Unpicklable(Exception):
    """It has something that no other process can have."""
