"""A message whose task is known and whose arguments fit: what a run calls."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from inspect import isasyncgen, isawaitable, isgenerator
from typing import Any, NamedTuple, Protocol

from ..core.message import Body
from ..tasks.task import Task


class Runnable(Protocol):
    """What the layers of middleware surround."""

    @property
    def task(self) -> Task[..., Any]:
        """The task that runs."""

    def call(self) -> Any:
        """Call its function."""


class Resolved(NamedTuple):
    """A message whose task is known and can be called."""

    task: Task[..., Any]
    body: Body

    def call(self) -> Any:
        """Call the function: the result of a `def` task, the coroutine of an `async def` task."""
        return self.task.definition.func(*self.body.args, **self.body.kwargs)


def refuse_unrun(name: str, result: object) -> None:
    """Raise TypeError when the task returned a coroutine or a generator: then nothing has run, and
    the message must not be acked."""
    if isgenerator(result) or isasyncgen(result) or isawaitable(result):
        if isinstance(result, Generator | Coroutine):
            result.close()  # or Python warns of it later
        kind = type(result).__name__
        raise TypeError(
            f"Nothing has run: {name} returned a {kind}, which nobody awaits or iterates over."
        )
