"""Stands for the tasks that no Python code runs: those of topics that are consumed over HTTP."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..core.conf import get_settings
from ..core.exceptions import InvalidMessage
from ..core.message import task_code
from . import registry
from .options import Options
from .task import Definition, Task


@lru_cache(maxsize=1024)
def foreign_task(topic: str, name: str) -> Task[..., Any]:
    """A task that takes all arguments. It is not in the registry, so no worker runs it."""
    options = Options(topic=topic)
    return Task(Definition(_run_elsewhere, name, options), options)


def task_of_row(topic: str, name: str) -> Task[..., Any] | None:
    """The declared task, else a foreign one if the topic is consumed over HTTP."""
    declared = registry.by_name.get(name)
    if declared is None and get_settings().is_for_api(topic):
        return foreign_task(topic, name)
    return declared


def task_to_send(topic: str, name: str) -> Task[..., Any]:
    """The task of this name, for a caller who may send to this topic only. Raises InvalidMessage
    for a task of another topic, and for one that nobody declares in a topic of workers."""
    # By the code, which is what a worker sees: another name may have the same.
    declared = registry.by_code.get(task_code(name))
    if declared is not None and (declared.name, declared.options.topic) == (name, topic):
        return declared
    if declared is None and get_settings().is_for_api(topic):
        return foreign_task(topic, name)
    raise InvalidMessage(f"No task of this topic is named {name!r}.")


def _run_elsewhere(*args: Any, **kwargs: Any) -> None:
    raise InvalidMessage("This message is consumed over HTTP: no code here can run it.")
