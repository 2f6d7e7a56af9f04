"""What becomes of one argument of many messages of a task: another value, other values for old
ones, another text inside of it, or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from ..core.exceptions import InvalidArguments, InvalidMessage
from . import registry
from .arguments import Arguments, is_quoted, read_json
from .redaction import check_search, refuse_mark, shown_arguments
from .task import Task

#: What can be done to an argument.
HOWS = ("set", "map", "replace", "remove")
#: Pairs that one edit has at most.
MOST_PAIRS = 100

#: Why an edit leaves a message out.
NOTHING_TO_EDIT = "nothing to edit"

#: Stands for a value that is not there.
_NOTHING = object()
_Change = Callable[[Any], Any]


class ArgumentEdit(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """An edit of one argument of a task, for many messages. Values are JSON. Raises InvalidMessage
    for what the task does not take."""

    task: str
    """Name of the task. Messages of other tasks are left out."""
    argument: str
    """Name of the parameter. Dots lead into objects and arrays: `address.city`."""
    how: str = "set"
    """`set` gives it `value`, whatever it was. `map` gives it the new value of the pair whose old
    value it has. `replace` takes each pair as a text and its replacement inside of the value.
    `remove` takes it away. A message that has nothing to map, replace or remove is left out."""
    value: Any = None
    pairs: tuple[tuple[Any, Any], ...] = ()

    def __post_init__(self) -> None:
        declared = _declared(self.task)
        if self.how not in HOWS:
            raise InvalidMessage(f"{self.how!r} is no edit: use one of {', '.join(HOWS)}.")
        if (self.how in ("map", "replace")) != bool(self.pairs) or len(self.pairs) > MOST_PAIRS:
            raise InvalidMessage(_("Write from one to a hundred pairs: old -> new."))
        if self.how == "replace" and not all(
            isinstance(text, str) and pair[0] for pair in self.pairs for text in pair
        ):
            raise InvalidMessage(_("Only a text can be replaced inside of a value."))
        try:
            check_search(self.argument, self.task)
        except InvalidMessage:
            raise InvalidMessage(
                _("%(name)s is a secret argument: edit it in one message at a time.")
                % {"name": self.argument}
            ) from None
        if self.how != "remove":  # an argument that the task no longer takes can be taken away
            self._check_name(declared)
        refuse_mark([self.value, *(new for _old, new in self.pairs)], {})
        news = [self.value] if self.how == "set" else [new for _old, new in self.pairs]
        for new in news if self.how != "replace" else ():
            self._check_value(declared, new)

    @classmethod
    def read(cls, task: str, argument: str, how: str, text: str) -> ArgumentEdit:
        """From what people write: for `set` the value; for `map` and `replace` a line `old -> new`
        for each pair. A value is JSON or a plain word. Raises InvalidMessage."""
        name = argument.strip()
        if not name:
            raise InvalidMessage(_("Write the name of the argument."))
        declared = _declared(task)
        value, pairs = None, list[tuple[Any, Any]]()
        if how == "set":
            value = _value(declared, name, text)
        elif how in ("map", "replace"):
            for line in filter(str.strip, text.splitlines()):
                old, new = _split(line)
                if how == "replace":
                    pairs.append((_plain(old), _plain(new)))
                    continue
                # The old value may be of a type that the task no longer takes.
                pairs.append((_json_or_text(old), _value(declared, name, new)))
        return cls(task=task, argument=name, how=how, value=value, pairs=tuple(pairs))

    def edited(self, topic: str, arguments: Arguments) -> Arguments | None:
        """The arguments with the edit. None when they have nothing to map, to replace or to remove.
        Raises InvalidArguments and UnserialisableArguments when the task does not take them."""
        try:
            if self.how != "set":
                # By what people may see: else the figures would tell what is hidden.
                seen = shown_arguments(topic, self.task, *arguments)
                if seen.redaction:
                    self._put(seen.args, seen.kwargs)
            args, kwargs = self._put(*arguments)
        except LookupError:
            return None
        return _declared(self.task).definition.stored(args, kwargs)

    def encode(self) -> dict[str, Any]:
        """As an object of JSON, for what is stored."""
        encoded: dict[str, Any] = msgspec.to_builtins(self)
        return encoded

    @classmethod
    def decode(cls, found: Any) -> ArgumentEdit:
        """From encode(). Raises InvalidMessage, also when the task no longer takes it."""
        try:
            return msgspec.convert(found, cls)
        except msgspec.MsgspecError as error:
            raise InvalidMessage(f"This is no edit of an argument: {error}") from error

    def in_words(self) -> str:
        """One line for people, also for those who may not see arguments."""
        words = {"set": "set", "remove": "removed", "replace": "text replaced"}
        return f"argument {self.argument}: {words.get(self.how, 'values mapped')}"

    def as_written(self) -> str:
        """The text that read() takes."""
        if self.how == "set":
            return _written(self.value)
        return "\n".join(f"{_written(old)} -> {_written(new)}" for old, new in self.pairs)

    def _put(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Raises LookupError when nothing fits."""
        name, *steps = self.argument.split(".")
        parameters = list(_declared(self.task).definition.signature.parameters.values())
        names = [one.name for one in parameters if one.kind in (0, 1)]  # those given by position
        if name not in kwargs and name in names and names.index(name) < len(args):
            return _changed(list(args), [str(names.index(name)), *steps], self._change), kwargs
        if name == "args" and steps and name not in kwargs:
            return _changed(list(args), steps, self._change), kwargs
        return args, _changed(dict(kwargs), [name, *steps], self._change)

    def _change(self, old: Any) -> Any:
        if self.how == "set":
            return self.value
        if old is _NOTHING:
            raise LookupError
        if self.how == "remove":
            return _NOTHING
        return self._mapped(old) if self.how == "map" else self._replaced(old)

    def _mapped(self, old: Any) -> Any:
        # 1, 1.0 and true are three values.
        for before, new in self.pairs:
            if type(before) is type(old) and before == old:
                return new
        raise LookupError

    def _replaced(self, old: Any) -> str:
        if not isinstance(old, str) or not any(text in old for text, _new in self.pairs):
            raise LookupError
        for text, new in self.pairs:
            old = old.replace(text, new)
        return old

    def _check_name(self, declared: Task[..., Any]) -> None:
        name = self.argument.partition(".")[0]
        parameters = declared.definition.signature.parameters
        takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        if name in parameters or takes_any or self.argument.startswith("args."):
            return
        near = get_close_matches(name, parameters, 1)
        meant = _(" Did you mean %(name)s?") % {"name": near[0]} if near else ""
        raise InvalidArguments(
            _("%(task)s has no argument %(name)s.") % {"task": self.task, "name": name} + meant
        )

    def _check_value(self, declared: Task[..., Any], value: Any) -> None:
        """A value inside of an argument is checked with the whole argument of each message."""
        if expected := declared.definition.annotations.by_name.get(self.argument):
            expected.stored(value)


def digest(arguments: Arguments) -> str:
    """A keyed hash: tells whether arguments are those that were written down, and nothing else."""
    content = msgspec.json.encode([list(arguments[0]), dict(arguments[1])], order="sorted").decode()
    return salted_hmac("django_delayq.arguments", content, algorithm="sha256").hexdigest()


def _declared(task: str) -> Task[..., Any]:
    if task not in registry.by_name:
        raise InvalidMessage(
            _("Choose the task first: an argument is one of a task that is declared here.")
        )
    return registry.by_name[task]


def _changed(holder: Any, steps: Sequence[str], change: _Change) -> Any:
    """A copy with the change at the end of the steps. Raises LookupError when they lead nowhere."""
    if not steps:
        return change(holder)
    step, rest = steps[0], steps[1:]
    if isinstance(holder, dict):
        after = _changed(holder.get(step, _NOTHING), rest, change)
        if after is not _NOTHING:
            return {**holder, step: after}
        return {name: value for name, value in holder.items() if name != step}
    if isinstance(holder, list) and step.isascii() and step.isdecimal():
        at = int(step[:9])
        after = _changed(holder[at], rest, change)
        return [*holder[:at], *([] if after is _NOTHING else [after]), *holder[at + 1 :]]
    raise LookupError


# What people write


def _value(declared: Task[..., Any], argument: str, text: str) -> Any:
    """The value in its JSON type: for a parameter with an annotation the one that it takes."""
    expected = declared.definition.annotations.by_name.get(argument)
    value = _json_or_text(text)
    if expected is None:
        return value
    if expected.type is str and not is_quoted(text):
        return text.strip()
    try:
        return expected.stored(value)
    except InvalidArguments:
        if value == text.strip():
            raise
    return expected.stored(text.strip())


def _json_or_text(text: str) -> Any:
    try:
        return read_json(text)
    except InvalidArguments:
        return text.strip()


def _plain(text: str) -> str:
    found = _json_or_text(text) if is_quoted(text) else text.strip()
    return found if isinstance(found, str) else text.strip()


def _split(line: str) -> tuple[str, str]:
    """From `old -> new`. An old text with an arrow in it stands in double quotes."""
    text, end = line.strip(), 0
    if text.startswith('"'):
        try:
            end = json.JSONDecoder().raw_decode(text)[1]
        except ValueError:
            end = 0
    before, arrow, after = text[end:].partition("->")
    if not arrow or (end and before.strip()) or (not end and not before.strip()):
        raise InvalidMessage(_("Write a line old -> new for each pair."))
    return text[:end] + before, after


def _written(value: Any) -> str:
    """The text that stands for a value."""
    is_plain = (
        isinstance(value, str)
        and value == value.strip() != ""
        and "->" not in value
        and all(c.isprintable() for c in value)
        and _json_or_text(value) == value
    )
    return value if is_plain else json.dumps(value, ensure_ascii=False)
