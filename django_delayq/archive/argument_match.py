"""Tells whether an argument of a message has a value: for the archive's search, and to erase a
person's data."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

import msgspec
from django.db.models import Q

from ..models import ArchivedMessage
from ..tasks import registry
from .row_arguments import ENCRYPTED, read_arguments, visible_arguments
from .selection import Rows


class ArgumentMatch:
    """The name of an argument, and the values of which it must have one.

    `name` is a parameter of the task, or `args` and a number for the positional ones; further dots
    lead into objects and arrays. `*` is any argument, and whatever is inside of it. The values are
    JSON.
    """

    def __init__(self, name: str, *values: Any) -> None:
        self.path = name.split(".")
        self.values = values

    @classmethod
    def read(cls, name: str, text: str) -> ArgumentMatch:
        """The text as people write it: JSON or a plain word. `42` is the number and the text."""
        values: list[Any] = [text]
        with suppress(msgspec.MsgspecError, UnicodeError):
            values.append(msgspec.json.decode(text))
        return cls(name, *values)

    def narrowed(self, rows: Rows) -> Rows:
        """The rows whose text has a value anywhere, so that the bodies of only a few rows are
        read."""
        conditions = [Q(body__contains=needle) for needle in self.needles]
        if conditions:  # the text of an encrypted body tells nothing
            conditions.append(Q(body__contains=f'"redaction":"{ENCRYPTED}"'))
        narrowed: Rows = rows.filter(reduce(or_, conditions)) if conditions else rows
        return narrowed

    @property
    def needles(self) -> Sequence[str]:
        """Every body that has the argument has one of these texts. None: any text may have it."""
        if any(isinstance(value, dict | list) for value in self.values):
            return []
        needles = {msgspec.json.encode(value).decode().strip('"') for value in self.values}
        return [] if "" in needles else sorted(needles)

    def is_in_row(self, task: str, message_id: UUID, body: str) -> bool:
        """Whether the argument is in a row of the archive, hidden or not. A body that cannot be
        read has none."""
        try:
            found = read_arguments(message_id, body)
        except (msgspec.MsgspecError, UnicodeError):
            return False
        return self.is_in(task, found.args, found.kwargs)

    def is_seen_in(self, row: ArchivedMessage) -> bool:
        """The same of what people may see of a row."""
        try:
            found = visible_arguments(row)
        except (msgspec.MsgspecError, UnicodeError):
            return False
        return self.is_in(row.task, found.args, found.kwargs)

    def is_in(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the argument is there and has one of the values."""
        if self.path == ["*"]:
            return any(map(self._is_one, _leaves([list(args), dict(kwargs)])))
        names: list[str] = []
        if task in registry.by_name:
            # By the task's signature of today. An argument that it has no name for is left out.
            parameters = registry.by_name[task].definition.signature.parameters.values()
            plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            names = [parameter.name for parameter in parameters if parameter.kind in plain]
        found: Any = {"args": args, **dict(zip(names, args, strict=False)), **kwargs}
        for step in self.path:
            is_index = isinstance(found, list) and step.isascii() and step.isdecimal()
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif is_index and int(step[:9]) < len(found):
                found = found[int(step[:9])]
            else:
                return False
        return self._is_one(found)

    def _is_one(self, found: Any) -> bool:
        # 1, 1.0 and true are three values.
        return any(type(found) is type(value) and bool(found == value) for value in self.values)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value
