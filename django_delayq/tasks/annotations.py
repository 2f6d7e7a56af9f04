"""A task's arguments by their annotations: checked and written as JSON where they are enqueued, and
made values of their types again before the task is called.

Annotations are read when the task is first enqueued or run, because they may name what is defined
after the task.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import EnumMeta
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import inspect as types

from ..core.exceptions import InvalidArguments, UnserialisableArguments
from ..core.message import check_json, plain_value

_SCALARS = (types.NoneType, types.BoolType, types.IntType, types.FloatType, types.StrType)
_BOUNDS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


@dataclass(frozen=True, slots=True)
class Expected:
    """What one parameter takes."""

    task: str
    parameter: str
    annotation: str
    """As the source has it; empty without one."""
    type: Any
    """What msgspec makes of JSON. typing.Any: every value that JSON carries unchanged."""
    by_type: bool
    """The type of a value decides whether it fits."""
    is_json: bool
    """JSON gives a value that fits, so there is nothing to make of it."""
    problem: str = ""
    """Why the annotation does not count."""

    def stored(self, value: Any) -> Any:
        """The JSON value that is stored for this argument. Raises InvalidArguments and
        UnserialisableArguments."""
        if self.type is Any:
            self._check_json(value)
            return value
        if self.is_json:
            self._check_json(value)
        try:
            written = msgspec.to_builtins(value, str_keys=True, enc_hook=_written)
        except Exception as error:  # the object may have methods of its own
            raise UnserialisableArguments(
                f"{self._name} this value cannot be written as JSON: {error}."
            ) from error
        read = self.read(written)
        if self.is_json:
            return value
        self._check_json(written)
        if not _is_same(read, value, written):
            raise InvalidArguments(
                f"{self._name} this {type(value).__qualname__} would come back from JSON as "
                f"another value. Its annotation is {self.annotation}.",
                parameter=self.parameter,
            )
        return written

    def read(self, written: Any) -> Any:
        """The value that the task gets for a stored one. Raises InvalidArguments."""
        try:
            return msgspec.convert(written, self.type, str_keys=True, dec_hook=_read)
        except Exception as error:  # __post_init__ and validators may raise anything
            words = str(error).rstrip(".") or type(error).__qualname__
            raise InvalidArguments(
                f"{self._name} {words}. Its annotation is {self.annotation}.",
                parameter=self.parameter,
            ) from error

    @property
    def _name(self) -> str:
        return f"{self.task}, {self.parameter}:"

    def _check_json(self, value: Any) -> None:
        try:
            check_json(value)
        except UnserialisableArguments as error:
            why = f" Its annotation does not count: {self.problem}." if self.problem else ""
            raise UnserialisableArguments(f"{self._name} {error}{why}") from None


class Annotations:
    """What the parameters of one task take."""

    def __init__(self, task: str, func: Callable[..., Any], signature: inspect.Signature) -> None:
        self.by_name = {
            parameter.name: _expected(task, func, parameter)
            for parameter in signature.parameters.values()
        }
        parameters = signature.parameters.values()
        self._by_position = [
            self.by_name[parameter.name]
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._by_keyword = {
            parameter.name: self.by_name[parameter.name]
            for parameter in parameters
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        }
        kinds = {parameter.kind: self.by_name[parameter.name] for parameter in parameters}
        self._further = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        self._others = kinds.get(inspect.Parameter.VAR_KEYWORD)
        self.are_json = all(expected.is_json for expected in self.by_name.values())
        """Stored arguments are passed to the task as they are."""
        self.decide_by_type = all(expected.by_type for expected in self.by_name.values())
        """Whether arguments fit follows from their types."""

    def stored(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The JSON values that are stored for arguments which the signature takes. A value may be
        given as its JSON already. Raises InvalidArguments and UnserialisableArguments."""
        return (
            [expected.stored(value) for expected, value in self._given(args)],
            {name: self._named(name).stored(value) for name, value in kwargs.items()},
        )

    def read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The values that the task gets for stored arguments which the signature takes. Those
        whose annotation is plain JSON are not checked again. Raises InvalidArguments."""
        return (
            [
                value if expected.is_json else expected.read(value)
                for expected, value in self._given(args)
            ],
            {
                name: value if self._named(name).is_json else self._named(name).read(value)
                for name, value in kwargs.items()
            },
        )

    def _given(self, args: Sequence[Any]) -> Iterator[tuple[Expected, Any]]:
        further = repeat(self._further) if self._further else ()
        return zip(chain(self._by_position, further), args, strict=False)

    def _named(self, name: str) -> Expected:
        expected = self._by_keyword.get(name, self._others)
        assert expected is not None, "the signature takes these arguments"
        return expected


# Annotations


def _expected(task: str, func: Callable[..., Any], parameter: inspect.Parameter) -> Expected:
    if parameter.annotation is parameter.empty:
        return Expected(task, parameter.name, "", Any, by_type=True, is_json=True)
    shown = inspect.formatannotation(parameter.annotation).strip("'\"")
    anything = Expected(task, parameter.name, shown, Any, by_type=True, is_json=True)
    try:
        hint = resolved_annotation(func, parameter)
        known = types.type_info(hint)
        foreign = next((part for part in _parts(known) if _is_foreign(part)), None)
    except Exception as error:  # a name that is not known here, a type that JSON has not
        return replace(anything, problem=str(error).partition(" - type ")[0].rstrip("."))
    if foreign is not None:
        cls = getattr(foreign, "cls", type(foreign))
        return replace(anything, problem=f"{cls.__qualname__} is no type that has JSON")
    by_type = all(_is_decided_by_type(part) for part in _parts(known))
    is_json = all(_is_json(part) for part in _parts(known))
    if isinstance(known, types.AnyType):
        hint = Any
    return Expected(task, parameter.name, shown, hint, by_type=by_type, is_json=is_json)


def resolved_annotation(func: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The annotation as an object. Each one is resolved alone, because only one of them may name
    what only a type checker imports. None is allowed where it is the default."""
    space = getattr(func, "__globals__", None) or vars(sys.modules[func.__module__])
    holder = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    hints = typing.get_type_hints(holder, globalns=space, include_extras=True)
    hint = hints[parameter.name]
    return typing.Optional[hint] if parameter.default is None else hint  # noqa: UP045


def _parts(known: types.Type, seen: set[int] | None = None) -> Iterator[Any]:
    """A type and everything that it is made of. A type may hold itself."""
    seen = set() if seen is None else seen
    if id(known) in seen:
        return
    seen.add(id(known))
    yield known
    inner: list[Any] = [getattr(known, name, None) for name in ("item_type", "key_type", "type")]
    inner.append(getattr(known, "value_type", None))
    inner += getattr(known, "item_types", ())
    inner += getattr(known, "types", ())
    inner += [field.type for field in getattr(known, "fields", ())]
    for part in inner:
        if isinstance(part, types.Type):
            yield from _parts(part, seen)


def _is_foreign(part: types.Type) -> bool:
    if isinstance(part, types.CustomType):
        return not (_is_enum(part.cls) or _is_pydantic(part.cls))
    return isinstance(part, types.RawType | types.ExtType)


def _is_decided_by_type(part: Any) -> bool:
    """Whether the type of a value says that it fits: not when bounds count, or what it holds."""
    if any(getattr(part, bound, None) is not None for bound in _BOUNDS):
        return False
    if isinstance(part, types.ListType):
        return isinstance(part.item_type, types.AnyType)
    if isinstance(part, types.DictType):
        return isinstance(part.key_type, types.AnyType | types.StrType) and isinstance(
            part.value_type, types.AnyType
        )
    return isinstance(part, (*_SCALARS, types.AnyType, types.UnionType))


def _is_json(part: Any) -> bool:
    """Whether what JSON gives is a value of this type."""
    if isinstance(part, types.DictType):
        return isinstance(part.key_type, types.AnyType | types.StrType)
    json_types = (
        *_SCALARS, types.AnyType, types.UnionType, types.ListType, types.LiteralType,
        types.TypedDictType, types.Metadata,
    )  # fmt: skip
    return isinstance(part, json_types)


# Types that msgspec does not know: enums with a metaclass of their own, as Django's choices have,
# and models of pydantic. These are known by their methods: nothing of ours imports pydantic.


def _is_enum(cls: Any) -> bool:
    return isinstance(cls, EnumMeta)


def _is_pydantic(cls: Any) -> bool:
    return isinstance(cls, type) and all(
        hasattr(cls, name) for name in ("model_dump", "model_validate_json", "model_fields")
    )


def _written(value: Any) -> Any:
    if _is_pydantic(type(value)):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    return plain_value(value)


def _read(cls: Any, written: Any) -> Any:
    if _is_enum(cls):
        return cls(written)
    try:
        return cls.model_validate_json(msgspec.json.encode(written))
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise
        # Its own text has the values, and errors of a worker are kept in the archive.
        found = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in errors(include_input=False, include_url=False)
        ]
        raise ValueError("; ".join(found)) from None


def _is_same(read: Any, value: Any, written: Any) -> bool:
    """Whether the task gets what was given, or what its JSON stands for."""
    try:
        if value in (read, written):
            return True
    except Exception:  # a signalling NaN, an __eq__ of others
        return False
    return bool(_sorted(read) == _sorted(value))


def _sorted(value: Any) -> Any:
    """JSON in which sets have one order. Datetimes stay: their JSON has no seconds of an offset, as
    zones had them a century ago."""
    return msgspec.to_builtins(
        value,
        str_keys=True,
        builtin_types=(datetime,),
        enc_hook=_written,
        order="deterministic",
    )
