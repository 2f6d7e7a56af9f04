"""The key of a message, made from its arguments as `@delayed_task(key=...)` says."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

import msgspec
from asgiref.sync import iscoroutinefunction

from ..core.exceptions import InvalidKey
from ..core.message import check_key, plain_value

_FORMATTER = Formatter()
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class _TemplatePart(NamedTuple):
    """A literal text of a template and the field after it."""

    literal: str
    field: str
    """`order_id`, or `order.lines[0]`; empty behind the last literal."""
    parameter: str
    """The field's first name."""
    format: str
    """What is behind a colon, as in `{day:%Y-%m}`."""

    @property
    def is_plain(self) -> bool:
        """Nothing but the name of a parameter."""
        return self.field == self.parameter and not self.format


class KeyMaker:
    """A template such as `"order:{order_id}"`, or a function of the arguments."""

    def __init__(self, source: str | Callable[..., str | None]) -> None:
        if not isinstance(source, str) and not callable(source):
            raise InvalidKey(
                f"key is {source!r:.80}: use a text such as 'order:{{order_id}}', or a function of "
                "the arguments that returns the key."
            )
        self.source = source
        self._parts = _parsed(source) if isinstance(source, str) else []
        self._signature = inspect.Signature()
        self._positions: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"KeyMaker({self.source!r})"

    def of(self, task: str, signature: inspect.Signature) -> KeyMaker:
        """The same for the parameters of a task. Raises InvalidKey for a name that is none of
        them."""
        parameters = [p for p in signature.parameters.values() if p.kind not in _VARIABLE]
        names = [parameter.name for parameter in parameters]
        if iscoroutinefunction(self.source):
            raise InvalidKey(f"The key of {task} is made by an async def: use a def.")
        for part in self._parts:
            if part.field and part.parameter not in names:
                near = difflib.get_close_matches(part.parameter, names, n=1)
                hint = f"Did you mean {near[0]}? " if near else ""
                raise InvalidKey(
                    f"The key of {task} names {part.parameter}, which is no parameter of it. "
                    f"{hint}Its parameters are: {', '.join(names)}."
                )
        bound = KeyMaker(self.source)
        bound._signature = signature
        bound._positions = {
            parameter.name: number
            for number, parameter in enumerate(parameters)
            if parameter.kind is not parameter.KEYWORD_ONLY
        }
        return bound

    def key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """The key of a call with these arguments, as the task gets them. Raises InvalidKey, and
        what a function raises."""
        if not isinstance(self.source, str):
            return check_key(self.source(*args, **kwargs))
        texts: list[str] = []
        for part in self._parts:
            texts.append(part.literal)
            if part.field:
                texts.append(self._text(part, self._value(part.parameter, args, kwargs)))
        return check_key("".join(texts))

    def _value(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._positions.get(name, len(args)) < len(args):
            return args[self._positions[name]]
        default = self._signature.parameters[name].default
        value = kwargs.get(name, default)
        if value is inspect.Parameter.empty:
            raise InvalidKey(f"The key {self.source!r} is made of {name}, which is not given.")
        return value

    def _text(self, part: _TemplatePart, value: Any) -> str:
        """As text stands in JSON, without quotes; or formatted, where the template says how."""
        if type(value) in (str, int) and part.is_plain:
            return str(value)  # most keys: a third of the time of what follows
        try:
            if part.field != part.parameter:
                value, _ = _FORMATTER.get_field(part.field, (), {part.parameter: value})
            if part.format:
                return format(value, part.format)
            plain = msgspec.to_builtins(value, enc_hook=plain_value)
        except Exception as error:  # an attribute that is missing, a format that does not fit
            raise InvalidKey(
                f"The key {self.source!r}: {part.field} gives {type(error).__name__}: {error}."
            ) from error
        if isinstance(plain, str):
            return plain
        if not isinstance(plain, int | float):
            raise InvalidKey(
                f"The key {self.source!r} is made of {part.field}, which is "
                f"{'None' if plain is None else 'of type ' + type(value).__qualname__}: text or a "
                "number is wanted. A function as key may return None, for no key."
            )
        return json.dumps(plain)


def _parsed(template: str) -> list[_TemplatePart]:
    """Raises InvalidKey."""
    parts: list[_TemplatePart] = []
    try:
        for literal, field, format_, conversion in _FORMATTER.parse(template):
            if conversion or "{" in (format_ or ""):
                raise ValueError("neither ! nor a field within a field can be used")
            first = field.replace("[", ".").partition(".")[0] if field is not None else ""
            parts.append(_TemplatePart(literal, field or "", first, format_ or ""))
            if field is not None and not first:
                raise ValueError("each field names a parameter, as {order_id} does")
    except ValueError as error:
        raise InvalidKey(f"The key {template!r:.80} is no template: {error}.") from None
    if not any(part.field for part in parts):
        check_key(template)
    return parts
