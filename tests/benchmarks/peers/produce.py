"""Enqueues through an adapter and prints one line of JSON. Runs in the peer's own environment: only
Python here.

produce NAME burst COUNT FIRST DUE | paced COUNT FIRST RATE | enqueue COUNT | bulk COUNT
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

PADDING = "x" * 88
BATCH = 500
FAR = 7200.0
WAITING = 1_000_000


async def one_by_one(enqueue: Callable[..., Any], pairs: Iterator[tuple[int, float]]) -> None:
    """One call per message."""
    if inspect.iscoroutinefunction(enqueue):
        for index, due in pairs:
            await enqueue(index, due, PADDING)
    else:
        for index, due in pairs:
            enqueue(index, due, PADDING)


async def in_bulk(adapter: Any, first: int, count: int, due: float) -> None:
    """500 messages per call, or one by one where the peer cannot."""
    bulk = getattr(adapter, "enqueue_bulk", None)
    if bulk is None:
        return await one_by_one(adapter.enqueue, ((first + index, due) for index in range(count)))
    for at in range(0, count, BATCH):
        answer = bulk(range(first + at, first + min(count, at + BATCH)), due, PADDING)
        if inspect.isawaitable(answer):
            await answer
    return None


def at_a_pace(count: int, first: int, rate: float, due: list[float]) -> Iterator[tuple[int, float]]:
    """So many per second, each due in 1 to 10 s, evenly spread at random."""
    begun = time.monotonic()
    for index in range(count):
        time.sleep(max(0.0, begun + index / rate - time.monotonic()))
        due.append(round(time.time() + random.uniform(1, 10), 3))
        yield first + index, due[-1]


async def run(adapter: Any, what: str, numbers: list[float]) -> dict[str, Any]:
    """Connect, then measure."""
    opened = getattr(adapter, "opened", None)
    if opened is not None:
        await opened()
    count, first, begun, due = int(numbers[0]), int([*numbers, 0][1]), time.time(), list[float]()
    match what:
        case "burst":
            await in_bulk(adapter, first, count, numbers[2])
        case "paced":
            await one_by_one(adapter.enqueue, at_a_pace(count, first, numbers[2], due))
        case "enqueue":
            far = begun + FAR
            await one_by_one(adapter.enqueue, ((WAITING + index, far) for index in range(count)))
        case "bulk":
            await in_bulk(adapter, WAITING, count, begun + FAR)
    ended = time.time()
    return {"per_second": count / (ended - begun), "ended": ended, "due": due}


def main(arguments: list[str]) -> None:
    """NAME, workload, numbers."""
    name, what, *numbers = arguments
    adapter = importlib.import_module(f"tests.benchmarks.peers.{name}")
    everything = run(adapter, what, [float(number) for number in numbers])
    answer = (
        asyncio.run(everything)
        if inspect.iscoroutinefunction(adapter.enqueue)
        else without_a_loop(everything)
    )
    print(json.dumps(answer), flush=True)


def without_a_loop(everything: Coroutine[None, None, dict[str, Any]]) -> dict[str, Any]:
    """Run what never waits: beneath a loop, a plain queue would be slower than it is for those who
    use it."""
    try:
        everything.send(None)
    except StopIteration as end:
        answer: dict[str, Any] = end.value
        return answer
    raise RuntimeError("a plain adapter waited for something")


if __name__ == "__main__":
    main(sys.argv[1:])
