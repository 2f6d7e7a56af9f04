"""Tasks of Django that tests enqueue. Imported only where TASKS names our backend."""

from __future__ import annotations

import os
from inspect import signature
from typing import Any

from django_delayq import current_message
from django_delayq.integrations.tasks_api import task

#: What ran.
seen: list[Any] = []
#: How often flaky() has failed.
failures: list[str] = []


@task()
def noop(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


@task
def bare(*args: Any, **kwargs: Any) -> None:
    """Decorated without a call."""


@task()
async def noop_async(*args: Any, **kwargs: Any) -> None:
    """Does nothing, as a coroutine."""


@task()
def meaning_of_life() -> int:
    return 42


#: @task of Django 6.0 takes no options of backends.
TAKES_OPTIONS = "kwargs" in signature(task).parameters
ISOLATED: dict[str, Any] = {"isolate": True, "memory_limit": "1GiB"} if TAKES_OPTIONS else {}


@task(**ISOLATED, takes_context=True)
def apart(context: Any, value: int) -> list[Any]:
    """Says which process runs it."""
    return [os.getpid(), context.attempt, value]


@task()
async def meaning_async() -> int:
    return 42


@task()
def note(value: Any) -> None:
    seen.append(value)


@task()
def fails() -> None:
    raise ValueError("this task fails")


@task()
def refuses(card: str) -> None:
    try:
        raise ValueError(card)
    except ValueError as error:
        raise LookupError(f"{card} is refused") from error


@task()
def exits() -> None:
    raise SystemExit("this task exits")


@task()
def interrupts() -> None:
    raise KeyboardInterrupt("this task interrupts")


@task()
def fails_with_an_exception_in_an_exception() -> None:
    raise ValueError(ValueError("this task fails"))


@task()
def returns_a_function() -> Any:
    return lambda: True


@task()
def echo(value: Any) -> Any:
    return value


@task(takes_context=True)
def own_id(context: Any) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
def own_attempt(context: Any, expected: int) -> None:
    assert context.attempt == expected
    seen.append(context.task_result)


@task(takes_context=True)
def flaky(context: Any, times: int) -> int:
    """Fails so often, and then returns the number of its attempt."""
    if len(failures) < times:
        failures.append(context.task_result.id)
        raise ValueError(f"failure {len(failures)}")
    return int(context.attempt)


@task()
def headers() -> dict[str, str]:
    return dict(current_message().headers)
