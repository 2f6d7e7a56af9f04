"""Hides arguments from people: those that `@delayed_task(secret=...)` names, and what the function
of DELAYQ["REDACT"] takes away. All pages, logs, errors, commands and the archive ask here."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import re
import traceback as tracebacks
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.utils.module_loading import import_string

from ..core.conf import get_settings
from ..core.exceptions import InvalidArguments, InvalidMessage, UndecodableMessage
from ..core.message import Message, Record, decode_body
from ..store.lease import Lease
from . import registry
from .arguments import Arguments, in_one_line
from .naming import kept_task_name

logger = logging.getLogger("delayq")

#: Stands for a value that is hidden.
MARK = "[redacted]"
#: The arguments of a row when nothing of them may be shown.
FAILED = '{"args":[],"kwargs":{},"redaction":"failed"}'
#: A hidden text of fewer characters is replaced only where it is a word of its own.
SHORT = 3
#: An annotation makes these of JSON, and their text is another one than that of the JSON.
_TYPED = (date, datetime, time, timedelta, Decimal, UUID, bytes)

_redactor: Callable[[str], Callable[..., tuple[Any, Any]]] = lru_cache(maxsize=4)(import_string)


class ShownArguments(NamedTuple):
    """The arguments of a call as people may see them."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    redaction: str = ""
    """`done` when something is hidden, `failed` when all is, because the function failed."""

    def as_json(self) -> str:
        """For the archive. The mark keeps a replay from taking what is left for the arguments."""
        fields = {"args": self.args, "kwargs": self.kwargs}
        return msgspec.json.encode(
            {**fields, "redaction": self.redaction} if self.redaction else fields
        ).decode()


def hides(code: bytes) -> bool:
    """Whether something may be hidden of the task with this code."""
    task = registry.by_code.get(code)
    return bool(get_settings().redact or (task is not None and task.definition.options.secret))


def shown_arguments(
    topic: str, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> ShownArguments:
    """What people may see of these arguments, which are JSON. They are not changed."""
    declared, redact = registry.by_name.get(task), get_settings().redact
    paths = declared.definition.options.secret if declared is not None else ()
    if not paths and not redact:
        return ShownArguments(args, kwargs)
    try:
        plain = msgspec.json.encode([args, kwargs])
        seen: tuple[Any, Any] = list(deepcopy(args)), dict(deepcopy(kwargs))
        if declared is not None and paths:
            seen = _without(declared.definition.signature, paths, *seen)
        if redact:
            args_seen, kwargs_seen = _redactor(redact)(topic, task, *seen)
            seen = list(args_seen), dict(kwargs_seen)
        encoded = msgspec.json.encode(seen)
    except Exception as error:  # whatever goes wrong: what may not be shown is not shown
        safe = safe_error(error, _texts_of(_leaves([args, kwargs])))
        # Without this call itself, whose variables are the arguments.
        safe.__traceback__ = safe.__traceback__ and safe.__traceback__.tb_next
        text = "The arguments of a message of %s cannot be redacted: all of them are hidden"
        logger.error(text, task, exc_info=safe)
        return ShownArguments([], {}, "failed")
    return ShownArguments(*seen, "" if encoded == plain else "done")


def shown_message(message: Message) -> Message:
    """The message with the arguments that people may see."""
    seen = shown_arguments(message.topic, message.task, message.args, message.kwargs)
    if not seen.redaction:
        return message
    return msgspec.structs.replace(message, args=seen.args, kwargs=seen.kwargs)


def call_in_one_line(message: Message) -> str:
    """The arguments of a message as in a call, for a list."""
    seen = shown_message(message)
    return in_one_line(seen.args, seen.kwargs)


def _without(
    signature: inspect.Signature, paths: Sequence[str], args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    parameters = list(signature.parameters.values())
    takes_more = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    places = [
        parameter.name for parameter in parameters if parameter.kind in (0, 1)
    ]  # those given by position
    for path in paths:
        name, *steps = path.split(".")
        parameter = signature.parameters.get(name)
        if parameter is not None and parameter.kind is parameter.VAR_POSITIONAL:
            args[len(places) :] = [_hidden(value, steps) for value in args[len(places) :]]
        elif parameter is not None and parameter.kind is parameter.VAR_KEYWORD:
            for other in kwargs.keys() - signature.parameters.keys():
                kwargs[other] = _hidden(kwargs[other], steps)
        elif name in places and places.index(name) < len(args):
            args[places.index(name)] = _hidden(args[places.index(name)], steps)
        if name in kwargs:
            kwargs[name] = _hidden(kwargs[name], steps)
    if not takes_more:  # arguments of another version of the code: nobody knows what they are
        args[len(places) :] = [MARK] * len(args[len(places) :])
    return args, kwargs


def _hidden(value: Any, steps: Sequence[str]) -> Any:
    """The value without what the steps lead to, in each element of a list. A value that has another
    form is hidden as a whole."""
    if not steps:
        return None if value is None else MARK
    if isinstance(value, list):
        if steps[0].isdecimal():
            at = int(steps[0])
            return [_hidden(part, steps[1:]) if n == at else part for n, part in enumerate(value)]
        return [_hidden(part, steps) for part in value]
    if isinstance(value, dict):
        if steps[0] in value:
            value[steps[0]] = _hidden(value[steps[0]], steps[1:])
        return value
    return None if value is None else MARK


# Searches and edits


def check_search(argument: str, task: str = "") -> None:
    """Raise InvalidMessage for a search by a secret argument: its hits would tell the value."""
    asked = argument.split(".")
    declared = [registry.by_name[task]] if task in registry.by_name else registry.by_name.values()
    for searched in declared:
        parameters = list(searched.definition.signature.parameters)
        way = asked
        if asked[0] == "args" and asked[1:2] and asked[1].isdecimal():
            way = [*parameters[int(asked[1][:3]) :][:1], *asked[2:]]
        for path in searched.definition.options.secret:
            # By steps into lists nobody leads past a name.
            ways = (
                [step for step in steps if not step.isdecimal()] for steps in (way, path.split("."))
            )
            if all(first == second for first, second in zip(*ways, strict=False)):
                raise InvalidMessage(
                    f"{path} is a secret argument of {searched.name}: nobody can search for it."
                )


def restored(value: Any, seen: Any, true: Any) -> Any:
    """An edited value with what is hidden from the one who has edited it: where it is still as it
    was shown, it is as it was. Raises InvalidArguments when the mark stands anywhere else."""
    if type(value) is type(seen) and value == seen:
        return true
    if isinstance(value, dict):
        seen, true = (x if isinstance(x, dict) else {} for x in (seen, true))
        return {
            name: restored(part, seen.get(name), true.get(name)) for name, part in value.items()
        }
    if isinstance(value, list):
        is_alike = isinstance(seen, list) and isinstance(true, list)
        if is_alike and len(value) == len(seen) == len(true):
            return [restored(*three) for three in zip(value, seen, true, strict=True)]
        return [restored(part, None, None) for part in value]
    refuse_mark([value], {})
    return value


def refuse_mark(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise InvalidArguments for arguments that were copied from where they are hidden."""
    if any(leaf == MARK for leaf in _leaves([list(args), dict(kwargs)])):
        raise InvalidArguments(f"{MARK} stands for a value that is hidden: write the value itself.")


# Texts and errors


def hidden_texts(
    topic: str, task: str, arguments: Arguments, typed: Arguments | None = None
) -> list[str]:
    """What may not stand in a text about this call, the longest first. `typed`: the arguments as
    the annotations of the task make them."""
    args, kwargs = arguments
    seen = shown_arguments(topic, task, args, kwargs)
    if not seen.redaction:
        return []
    true = _differences([list(args), dict(kwargs)], [list(seen.args), dict(seen.kwargs)])
    return _texts_of(true, () if typed is None else _typed_texts(arguments, seen, typed))


def hidden_in(*leases: Lease) -> list[str]:
    """The same for messages that run."""
    if len(leases) == 1:
        return _hidden_in(*leases)
    return sorted({text for lease in leases for text in _hidden_in(lease)}, key=len, reverse=True)


def _hidden_in(lease: Lease) -> list[str]:
    try:
        record = Record.decode(lease.record)
        body = decode_body(record.flags, record.body, lease.id)
    except UndecodableMessage:
        return []
    arguments = body.args, body.kwargs
    task = registry.by_code.get(record.task_code)
    if task is None:  # a consumer of the HTTP API runs it
        name = kept_task_name(lease.partition, record.task_code)
        return hidden_texts(lease.partition.topic, name, arguments)
    try:
        typed = task.definition.annotations.read(list(body.args), dict(body.kwargs))
    except Exception:  # the texts of the JSON are those that matter most
        typed = None
    return hidden_texts(lease.partition.topic, task.name, arguments, typed)


def without(text: str, hidden: Sequence[str]) -> str:
    """The text with the mark in place of what is hidden."""
    for secret in hidden:
        if len(secret) >= SHORT:
            text = text.replace(secret, MARK)
        else:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", MARK, text)
    return text


class RedactedError(Exception):
    """Stands for an exception whose texts or variables hold what is hidden. Its class has the name
    of the true one."""


def safe_error(error: BaseException, hidden: Sequence[str]) -> BaseException:
    """The error for people: with its class and its stack, without what is hidden in its text, in
    those of its causes, and in the variables of its stack. Without anything hidden the error
    itself."""
    return _safe(error, hidden, {}) if hidden else error


def _safe(
    error: BaseException, hidden: Sequence[str], made: dict[int, BaseException]
) -> BaseException:
    if id(error) in made:
        return made[id(error)]
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    try:
        text = without(str(error), hidden)
    except Exception:
        text = "its message cannot be shown"
    inner = getattr(error, "exceptions", ())
    if isinstance(inner, tuple) and inner:
        text = "; ".join([text, *(f"{type(each).__name__}: {each}" for each in inner)])
    safe = made[id(error)] = type(kind.__name__, (RedactedError,), names)(without(text, hidden))
    # Who reports errors also reads the variables of the stack.
    tracebacks.clear_frames(error.__traceback__)
    safe.__traceback__ = error.__traceback__
    for name in ("__cause__", "__context__"):
        other = getattr(error, name)
        setattr(safe, name, None if other is None else _safe(other, hidden, made))
    safe.__suppress_context__ = error.__suppress_context__
    if notes := getattr(error, "__notes__", None):
        safe.__notes__ = [without(str(note), hidden) for note in notes]
    return safe


def _texts_of(values: Iterable[Any], others: Iterable[str] = ()) -> list[str]:
    """How these values may stand in a text."""
    texts = set(others)
    for value in values:
        texts.add(str(value))
        if isinstance(value, str):
            written = (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False))
            texts |= {text[1:-1] for text in written}
    return sorted(filter(None, map(str.strip, texts)), key=len, reverse=True)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves(part)
    elif value is not None and not isinstance(value, bool):
        yield value


def _differences(true: Any, seen: Any) -> Iterator[Any]:
    """The values that are hidden."""
    if type(true) is type(seen) and true == seen:
        return
    if isinstance(true, dict) and isinstance(seen, dict):
        for name, value in true.items():
            yield from _differences(value, seen.get(name))
    elif isinstance(true, list) and isinstance(seen, list) and len(true) == len(seen):
        for value, shown in zip(true, seen, strict=True):
            yield from _differences(value, shown)
    else:
        yield from _leaves(true)


def _typed_texts(arguments: Arguments, seen: ShownArguments, typed: Arguments) -> Iterator[str]:
    """Texts of values that an annotation has made of hidden ones."""
    (args, kwargs), (args_typed, kwargs_typed) = arguments, typed
    of_args = zip(args, [*seen.args, *[None] * len(args)], args_typed, strict=False)
    of_kwargs = (
        (kwargs.get(name), seen.kwargs.get(name), kwargs_typed[name]) for name in kwargs_typed
    )
    for true, visible, value in (*of_args, *of_kwargs):
        if true != visible:
            for leaf in _leaves_of_types(value):
                if isinstance(leaf, _TYPED):
                    yield from (str(leaf), repr(leaf))
                if isinstance(leaf, bytes):
                    yield leaf.decode(errors="replace")


def _leaves_of_types(value: Any) -> Iterator[Any]:
    """Also those inside of dataclasses and the like."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict | list | tuple | set | frozenset):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _leaves_of_types(part)
    else:
        yield value
