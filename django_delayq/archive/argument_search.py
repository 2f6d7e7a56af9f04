"""Whether a row of the archive was called with a given argument: `order_id`, `args.0` or `order.id`
and its value."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.db.models import Q

from ..models import ArchivedMessage
from ..tasks import registry
from .selection import Rows

_MISSING = object()


class Sought:
    """An argument and what it is to be: as JSON, or as a plain word.

    `name` is a parameter of the task, or `args` and a number for the positional ones; further dots
    lead into objects and arrays.
    """

    def __init__(self, name: str, value: str) -> None:
        self.path = name.split(".")
        self.word, self.value = value, _read(value)

    def narrowed(self, rows: Rows) -> Rows:
        """The rows whose text has the value anywhere, with their bodies: so few of them need to be
        read."""
        if isinstance(self.value, dict | list):
            return rows
        needles = {_written(self.word).strip('"'), _written(self.value).strip('"')}
        if "" in needles:  # the empty text is in every text
            return rows
        condition = Q()
        for needle in needles:
            condition |= Q(body__contains=needle)
        narrowed: Rows = rows.filter(condition)
        return narrowed

    def is_in(self, row: ArchivedMessage) -> bool:
        """Whether the argument is there and is this."""
        found = _at(_named(row), self.path)
        return _same(found, self.word) or _same(found, self.value)


def _read(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.MsgspecError, UnicodeError):
        return value


def _written(value: Any) -> str:
    """As the archive has it."""
    return msgspec.json.encode(value).decode()


def _same(found: Any, value: Any) -> bool:
    """1, 1.0 and true are three things."""
    return type(found) is type(value) and bool(found == value)


def _named(row: ArchivedMessage) -> Mapping[str, Any]:
    """What the task is called with, by name; nothing for a body that cannot be read."""
    try:
        body = msgspec.json.decode(row.body)
        args, kwargs = body["args"], body["kwargs"]
    except (msgspec.MsgspecError, UnicodeError, TypeError, KeyError):
        return {}
    return {"args": args, **_by_position(row.task, args), **kwargs}


def _by_position(task: str, args: Sequence[Any]) -> dict[str, Any]:
    """By the task's signature of today; what it has no names for is left out."""
    if task not in registry.by_name:
        return {}
    parameters = registry.by_name[task].definition.signature.parameters.values()
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in parameters if one.kind in plain]
    return dict(zip(names, args, strict=False))


def _at(value: Any, path: Sequence[str]) -> Any:
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif (
            isinstance(value, list)
            and step.isascii()
            and step.isdecimal()
            and int(step[:9]) < len(value)
        ):
            value = value[int(step[:9])]
        else:
            return _MISSING
    return value
