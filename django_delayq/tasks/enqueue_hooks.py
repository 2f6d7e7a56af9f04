"""The functions of DELAYQ["ENQUEUE_HOOKS"], which give headers to each new message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from django.utils.module_loading import import_string

from ..core.exceptions import ConfigurationError, InvalidMessage
from .options import check_headers
from .task import Call, Task

#: Arguments: the names of the topic and of the task.
EnqueueHook = Callable[[str, str], Mapping[str, str] | None]


def with_hooked_headers(calls: Sequence[Call], paths: Sequence[str]) -> list[Call]:
    """The same calls with the headers of the hooks. Those that using() was given win.

    A hook is called once per task and call of enqueue; enqueue_many calls it once per task for up
    to 500 messages. Raises InvalidMessage, ConfigurationError, and what a hook raises.
    """
    copies: dict[Task[..., Any], Task[..., Any]] = {}
    for call in calls:
        if call.task not in copies:
            copies[call.task] = _with_headers(call.task, paths)
    return [replace(call, task=copies[call.task]) for call in calls]


def _with_headers(task: Task[..., Any], paths: Sequence[str]) -> Task[..., Any]:
    headers: dict[str, str] = {}
    for path, hook in zip(paths, _hooks(tuple(paths)), strict=True):
        try:
            headers |= check_headers(hook(task.options.topic, task.name) or {})
        except InvalidMessage as error:
            raise InvalidMessage(f'{path} of DELAYQ["ENQUEUE_HOOKS"]: {error}') from error
    return type(task)(
        task.definition, replace(task.options, headers={**headers, **task.options.headers})
    )


@lru_cache(maxsize=8)
def _hooks(paths: tuple[str, ...]) -> tuple[EnqueueHook, ...]:
    try:
        return tuple(import_string(path) for path in paths)
    except ImportError as error:
        raise ConfigurationError(
            f'A function of DELAYQ["ENQUEUE_HOOKS"] cannot be imported: {error}.'
        ) from error
