"""Sample tasks, found because "tests" is an installed app."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from asgiref.sync import sync_to_async

from django_delayq import Reject, Retry, Snooze, current_message, delayed_task

#: What ran, in order: arguments, or whatever a task wants a test to see.
seen: list[Any] = []
#: Tasks that wait, wait for this.
gate = threading.Event()
#: Set by tasks that wait, once they run.
entered = threading.Event()


@delayed_task
def noop(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


@delayed_task()
def record(value: Any = None) -> None:
    seen.append(value)


@delayed_task(topic="orders")
def close_order(order_id: int, *, reason: str = "unpaid") -> tuple[int, str]:
    """Closes an order."""
    seen.append((order_id, reason))
    return order_id, reason


@delayed_task(topic="orders")
async def remind(order_id: int) -> str:
    seen.append(order_id)
    return f"reminded {order_id}"


@delayed_task(topic="crowd")
def crowd(number: int = 0) -> None:
    """Of a topic that tests split into partitions."""
    seen.append(number)


@delayed_task(topic="waits")
def wait() -> None:
    entered.set()
    gate.wait(20)


@delayed_task(topic="hangs", ttr=1, max_runtime=1)
def hang() -> None:
    entered.set()
    gate.wait(20)


@delayed_task(topic="hangs-async", ttr=1, max_runtime=1)
async def hang_async() -> None:
    entered.set()
    try:
        await asyncio.sleep(20)
    finally:
        seen.append("cancelled")


@delayed_task(topic="waits-async")
async def wait_async() -> None:
    entered.set()
    while not gate.is_set():
        await asyncio.sleep(0.005)
    seen.append("async")


@delayed_task
def look() -> None:
    seen.append(current_message())
    logging.getLogger("project").warning("a line of the task's own")


@delayed_task
async def look_async() -> None:
    await asyncio.sleep(0)
    seen.append(current_message())
    seen.append(await sync_to_async(current_message)())


class Mute(Exception):
    """An exception that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def _raise(error: BaseException) -> NoReturn:
    raise error


_MODES: dict[str, Callable[[], object]] = {
    "return": lambda: None,
    "fail": lambda: _raise(ValueError("it failed")),
    "unworthy": lambda: _raise(TypeError("a bug")),
    "retry": lambda: _raise(Retry("later")),
    "retry-in": lambda: _raise(Retry(delay=42)),
    "retry-wrong": lambda: _raise(Retry(delay=-1)),
    "snooze": lambda: _raise(Snooze(30)),
    "snooze-wrong": lambda: _raise(Snooze(float("nan"))),
    "reject": lambda: _raise(Reject("no such order")),
    "exit": lambda: _raise(SystemExit(3)),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "mute": lambda: _raise(Mute()),
    "surrogate": lambda: _raise(ValueError("half a character: \ud800")),
    "long": lambda: _raise(ValueError("x" * 100_000)),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
}


@delayed_task(topic="modes", max_attempts=3, backoff=[7, 70], retry_for=(ValueError, Mute))
def act(mode: str = "return") -> None:
    _MODES[mode]()


@delayed_task(topic="modes", max_attempts=3, backoff=[7, 70], retry_for=(ValueError, Mute))
async def act_async(mode: str = "return") -> None:
    await asyncio.sleep(0)
    _MODES[mode]()


@delayed_task(topic="modes", backoff=lambda failures: failures / 0)
def wrongly_backed_off() -> None:
    raise ValueError("it failed")


_ODD: dict[str, Any] = {"huge": "x" * 100_000, "object": object()}


@delayed_task(result=True)
def add(a: int, b: int) -> int:
    return a + b


@delayed_task(result=True)
async def add_async(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@delayed_task(result=True, exactly_once=True)
def add_once(a: int, b: int) -> int:
    return a + b


@delayed_task(result=True)
def answer(value: Any = None) -> Any:
    """Returns what it is given, or what JSON cannot carry."""
    return _ODD.get(value, value) if isinstance(value, str) else value


@delayed_task(result=True)
def count_to(total: int, fail: bool = False) -> int:
    """Reports how far it has come."""
    for number in range(1, total + 1):
        current_message().progress(number, total, "pages")
        if fail and number == total - 1:
            raise ValueError("no paper")
    return total
