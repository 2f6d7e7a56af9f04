"""A task's arguments as people write them: one text per parameter of its signature, and back
without loss."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from ..core.exceptions import InvalidArguments
from . import registry

Arguments = tuple[Sequence[Any], Mapping[str, Any]]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter, as a form shows it."""

    name: str
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    annotation: str = ""
    """As the source has it; empty without one."""
    default: str | None = None
    """As Python writes it; None: it has to be given."""
    is_text: bool = False
    """Written as it is, not as JSON."""

    @property
    def is_array(self) -> bool:
        """`*args`: a JSON array, empty when nothing is written."""
        return self.kind is inspect.Parameter.VAR_POSITIONAL

    @property
    def is_object(self) -> bool:
        """`**kwargs`: a JSON object, empty when nothing is written."""
        return self.kind is inspect.Parameter.VAR_KEYWORD

    @property
    def required(self) -> bool:
        """Whether nothing written is an error."""
        return self.default is None and not self.is_array and not self.is_object

    def write(self, value: Any) -> str:
        """The text for a value; read() gives the value back."""
        # Text is written as it is when there is some, all of it can be seen, and it does not look
        # quoted.
        is_plain = (
            self.is_text
            and isinstance(value, str)
            and value == value.strip() != ""
            and all(c.isprintable() or c == "\n" for c in value)
            and not is_quoted(value)
        )
        return value if is_plain else write_json(value)

    def read(self, text: str) -> Any:
        """The value that a text means. Raises InvalidArguments."""
        text = text.replace("\r\n", "\n")  # a form sends each line end as two characters
        if self.is_text and not is_quoted(text):
            return text
        value = read_json(text)
        if self.is_text and not isinstance(value, str):
            raise InvalidArguments(_("This is not text."))
        if self.is_array and not isinstance(value, list):
            raise InvalidArguments(_('A JSON array is wanted, such as [1, "two"].'))
        if self.is_object and not isinstance(value, dict):
            raise InvalidArguments(_('A JSON object is wanted, such as {"name": 1}.'))
        return value


#: The form for a task that is not known here, and for arguments that its signature does not take.
RAW = (
    Parameter(name="args", kind=inspect.Parameter.VAR_POSITIONAL),
    Parameter(name="kwargs", kind=inspect.Parameter.VAR_KEYWORD),
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parameters of a call, and what it gives to which of them."""

    parameters: Sequence[Parameter]
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values by the names of parameters."""
    by_position: int = 0
    """How many of the parameters are given without their names."""

    @property
    def is_raw(self) -> bool:
        """Whether it is the two fields that fit everything."""
        return self.parameters is RAW

    def arguments(self, values: Mapping[str, Any]) -> Arguments:
        """Arguments that give these values to the parameters. A value that came by position still
        does, where that is possible.

        Raises InvalidArguments with the parameter that it is about.
        """
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        # The parameters before *args can only be given by position.
        by_position = (
            len(self.parameters)
            if any(values.get(p.name) for p in self.parameters if p.is_array)
            else 0
        )
        by_position = max(by_position, self.by_position)
        missing = ""
        for index, parameter in enumerate(self.parameters):
            if parameter.is_object:
                kwargs |= self._others(parameter, values.get(parameter.name, {}))
            elif parameter.name not in values:
                missing = missing or (parameter.name if parameter.kind in _POSITIONAL else "")
            elif parameter.is_array:
                _refuse_gap(missing, values[parameter.name])
                args += values[parameter.name]
            elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                _refuse_gap(missing, True)
                args.append(values[parameter.name])
            elif parameter.kind in _POSITIONAL and index < by_position and not missing:
                args.append(values[parameter.name])
            else:
                kwargs[parameter.name] = values[parameter.name]
        return args, kwargs

    def _others(self, parameter: Parameter, others: Mapping[str, Any]) -> Mapping[str, Any]:
        """What goes to **kwargs. Raises InvalidArguments for the name of another parameter."""
        named = {p.name for p in self.parameters if not p.is_array and not p.is_object}
        named -= {p.name for p in self.parameters if p.kind is inspect.Parameter.POSITIONAL_ONLY}
        if twice := sorted(named & others.keys()):
            raise InvalidArguments(
                _("%(name)s has a field of its own: write it there.") % {"name": twice[0]},
                parameter=parameter.name,
            )
        return others


def layout(task: str, arguments: Arguments | None = None) -> Layout:
    """The parameters of a task, and which of them these arguments fill. The layout is raw when the
    task is unknown or they do not fit it."""
    declared = registry.by_name.get(task)
    args, kwargs = arguments or ((), {})
    raw = Layout(parameters=RAW, given={"args": list(args), "kwargs": dict(kwargs)})
    if declared is None:
        return raw
    signature = declared.definition.signature
    parameters = tuple(map(_parameter, signature.parameters.values()))
    if arguments is None:
        return Layout(parameters=parameters)
    try:
        given = signature.bind(*args, **kwargs).arguments
    except TypeError:
        return raw
    given = {
        name: list(value) if isinstance(value, tuple) else value for name, value in given.items()
    }
    if any(p.is_text and not isinstance(given.get(p.name, ""), str) for p in parameters):
        return raw
    return Layout(parameters=parameters, given=given, by_position=len(args))


def _parameter(raw: inspect.Parameter) -> Parameter:
    annotation = "" if raw.annotation is raw.empty else inspect.formatannotation(raw.annotation)
    return Parameter(
        name=raw.name,
        kind=raw.kind,
        annotation=annotation.strip("'\""),
        default=None if raw.default is raw.empty else f"{raw.default!r:.200}",
        is_text=raw.annotation in (str, "str")
        and raw.kind not in (raw.VAR_POSITIONAL, raw.VAR_KEYWORD),
    )


def _refuse_gap(missing: str, value: Any) -> None:
    if missing and value:
        raise InvalidArguments(
            _("Give this one too: what comes after it is given by position."), parameter=missing
        )


# JSON for people


def write_json(value: Any) -> str:
    """JSON in which all characters stand as they are, except those that nobody can see: control,
    bidirectional and zero-width characters."""
    indent = 2 if isinstance(value, list | tuple | dict) and value else None
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def read_json(text: str) -> Any:
    """The value of a JSON text, exactly. Raises InvalidArguments, also for NaN and for a name that
    stands twice."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise InvalidArguments(
            _(
                "This is not JSON (line %(line)d, column %(column)d: %(problem)s). Text stands in "
                "double quotes."
            )
            % {"line": error.lineno, "column": error.colno, "problem": error.msg}
        ) from None
    except RecursionError:
        raise InvalidArguments(_("This is nested too deeply.")) from None
    except InvalidArguments:
        raise
    except ValueError:  # Python reads whole numbers of up to 4,300 digits
        raise InvalidArguments(_("This number has too many digits.")) from None


def _refuse_constant(name: str) -> Any:
    raise InvalidArguments(_("JSON has no %(name)s.") % {"name": name})


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidArguments(
                _("The name %(name)s stands twice in an object.") % {"name": write_json(name)}
            )
        found[name] = value
    return found


def is_quoted(text: str) -> bool:
    """Whether it is written as a JSON text."""
    return len(text.strip()) > 1 and text.strip()[0] == text.strip()[-1] == '"'


def in_one_line(args: Sequence[Any], kwargs: Mapping[str, Any], most: int = 120) -> str:
    """The arguments as in a call, cut to `most` characters."""
    parts = [json.dumps(value, ensure_ascii=False) for value in args]
    parts += [f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in kwargs.items()]
    line = "".join(
        c if c.isprintable() else json.dumps(c)[1:-1] for c in ", ".join(parts)[: most + 1]
    )
    return line if len(line) <= most else f"{line[: most - 1]}…"
