"""What can be a task, what its name is, and whether two functions are the same: checked when a task
is declared."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from types import CellType, CodeType, NoneType
from typing import Any

from asgiref.sync import iscoroutinefunction

from ..core.exceptions import InvalidName, InvalidTask

_CHARACTERS = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_SIMPLE = (str, bytes, int, float, bool, NoneType)


def check_function(func: Any) -> None:
    """Raise InvalidTask for what no worker could run as a task."""
    if isinstance(func, str):
        raise InvalidTask(
            f"@delayed_task takes its options by name: @delayed_task(topic={func!r})."
        )
    if what := _what(func):
        raise InvalidTask(f"{what}, and a task is a function of a module: def or async def.")
    name = func.__qualname__
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidTask(
            f"{name} is a generator: a call runs nothing of it until somebody takes its values, "
            "and a worker does not."
        )
    hidden = inspect.unwrap(func)
    if hidden is not func and iscoroutinefunction(hidden) and not iscoroutinefunction(func):
        raise InvalidTask(
            f"{name} is async def, and its decorator is not: nobody can tell whether a call runs "
            "it or only makes a coroutine. Let the decorator give an `async def` that awaits it, "
            "or mark what it gives with asgiref.sync.markcoroutinefunction. If it runs the "
            "coroutine itself, leave functools.wraps away."
        )


def _what(func: Any) -> str:
    """In words: what it is when it is no function of a module."""
    if isinstance(func, type):
        return f"{func.__qualname__} is a class"
    if isinstance(func, staticmethod | classmethod):
        return f"{func.__func__.__qualname__} is a {type(func).__name__}"
    if inspect.ismethod(func):
        return f"{func.__qualname__} is a method of {type(func.__self__).__name__}"
    if (
        isinstance(func, partial)
        or not callable(func)
        or not isinstance(getattr(func, "__qualname__", None), str)
    ):
        return f"This is of type {type(func).__qualname__}"
    owner, _, _ = func.__qualname__.rpartition(".")
    parameters = list(getattr(getattr(func, "__code__", None), "co_varnames", ()))
    if owner and not owner.endswith("<locals>") and parameters[:1] in (["self"], ["cls"]):
        return f"{func.__qualname__} is a method: a message has no {parameters[0]} to call it on"
    return ""


def name_of(func: Callable[..., Any], given: str | None) -> str:
    """The name that stands for the task in stored messages. Raises InvalidName."""
    if given is not None:
        if not isinstance(given, str) or not _CHARACTERS.fullmatch(given):
            raise InvalidName(
                f"{given!r:.80} cannot name a task: use A-Z a-z 0-9 _ . - and at most 200 "
                "characters."
            )
        return given
    name = f"{func.__module__}.{func.__qualname__}"
    if _CHARACTERS.fullmatch(name):
        return name
    if "<" in name:
        kind = "a lambda" if name.endswith("<lambda>") else "made inside another function"
        raise InvalidName(
            f"{func.__qualname__} is {kind}: others may come out of there under the same name. "
            "Give it one of its own: @delayed_task(name=...). If a decorator has made it, "
            "functools.wraps in there keeps the name."
        )
    raise InvalidName(
        f"{name:.250} cannot name a task: give it @delayed_task(name=...), of A-Z a-z 0-9 _ . -"
    )


def declaring(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose own signature says what a call takes.

    A decorator's (*args, **kwargs) says nothing: then the function behind it counts. A decorator
    that names its parameters, or has a __signature__, is believed: it may give the function an
    argument of its own.
    """
    open_ = [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    while not hasattr(func, "__signature__") and hasattr(func, "__wrapped__"):
        try:
            own = inspect.signature(func, follow_wrapped=False)
        except ValueError:  # made in C, as functools.cache
            pass
        else:
            if [parameter.kind for parameter in own.parameters.values()] != open_:
                return func
        func = func.__wrapped__
    return func


def place_of(func: Callable[..., Any]) -> str:
    """File and line, for people."""
    code = getattr(inspect.unwrap(func), "__code__", None)
    return (
        f"{code.co_filename}:{code.co_firstlineno}"
        if code
        else f"{func.__module__}.{func.__qualname__}"
    )


def fingerprint(func: Any, seen: set[int] | None = None) -> Any:
    """A value that stays equal when the function's module is imported a second time, under any
    name, or loaded anew.

    The same place in the same file is not enough: a decorator or a factory makes many functions
    there, which differ by what they close over. `seen` has the ids of what was compared before, as
    objects may hold each other.
    """
    kind, seen = type(func).__qualname__, seen if seen is not None else set()
    if id(func) in seen:
        return kind
    seen.add(id(func))
    if isinstance(func, partial):
        return (
            kind,
            fingerprint(func.func, seen),
            _held(func.args, seen),
            _held(func.keywords, seen),
        )
    code = getattr(func, "__code__", None)
    if isinstance(code, CodeType):
        cells = [_held(cell, seen) for cell in func.__closure__ or ()]
        return code.co_filename, code.co_firstlineno, func.__qualname__, cells
    inner = getattr(func, "__wrapped__", None)
    return kind, getattr(func, "__qualname__", ""), fingerprint(inner, seen) if inner else ""


def _held(value: Any, seen: set[int]) -> Any:
    """A comparable form of what a function closes over. A module that is loaded anew makes its
    objects anew, with the same facts about them. No __eq__ of others is called: it may answer
    anything."""
    if isinstance(value, CellType):
        try:
            value = value.cell_contents
        except ValueError:  # the name is not bound yet
            return None
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, partial) or hasattr(value, "__code__") or hasattr(value, "__wrapped__"):
        return fingerprint(value, seen)
    if isinstance(value, list | tuple | dict) and id(value) not in seen:
        seen.add(id(value))
        # Not items(): a pair that is made here and freed leaves its id to another object.
        inner = [*value, *value.values()] if isinstance(value, dict) else list(value)
        return [_held(part, seen) for part in inner]
    facts = vars(value) if hasattr(value, "__dict__") else {}
    return type(value).__qualname__, {
        name: fact for name, fact in facts.items() if isinstance(fact, _SIMPLE)
    }
