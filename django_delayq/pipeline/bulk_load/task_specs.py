"""Tasks as jobs need them. On the driver, where the project's code is."""

from __future__ import annotations

import difflib
import inspect
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin
from uuid import UUID

from ...core.message import limit_id
from ...tasks import registry
from ...tasks.annotations import Expected
from ..job_errors import Refused
from ..params import ParameterSpec, TaskSpec

_KINDS: dict[Any, Any] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "both",
    inspect.Parameter.KEYWORD_ONLY: "named",
    inspect.Parameter.VAR_POSITIONAL: "rest",
    inspect.Parameter.VAR_KEYWORD: "others",
}


def spec_of(name: str) -> TaskSpec:
    """The declared task of this name. Raises Refused, with names that are near, when there is
    none."""
    task = registry.by_name.get(name)
    if task is None:
        near = difflib.get_close_matches(name, registry.by_name, n=3)
        hint = (
            f"Did you mean {' or '.join(near)}?"
            if near
            else f"Declared are: {', '.join(sorted(registry.by_name))}."
        )
        raise Refused(f"There is no task {name!r}. {hint}")
    options = task.definition.options
    if options.limit_by is not None:
        raise Refused(
            f"{name} has limit_by, and a job does not know the limit of each message: enqueue them "
            "with enqueue_many."
        )
    parameters = [
        ParameterSpec(
            name=parameter.name,
            kind=_KINDS[parameter.kind],
            annotation=_annotation(task.definition.annotations.by_name[parameter.name]),
            required=parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD),
        )
        for parameter in task.definition.signature.parameters.values()
    ]
    return TaskSpec(
        name=task.name,
        topic=task.options.topic,
        ttr_ms=task.ttr_ms,
        priority=int(task.options.priority),
        max_attempts=task.max_attempts_of_call,
        expires=str(task.options.expires),
        parameters=parameters,
        limit=limit_id(name) if options.rule.holds_back else b"",
    )


def _annotation(expected: Expected) -> str:
    """The annotation as the source has it. Types that a job checks row by row have their own names,
    whatever the source calls them."""
    others = [part for part in get_args(expected.type) if part is not NoneType]
    is_optional = len(others) == 1 and get_origin(expected.type) in (Union, UnionType)
    kind = others[0] if is_optional else expected.type
    if kind not in (UUID, datetime, date, time, timedelta, Decimal, bytes):
        return expected.annotation
    return f"{kind.__name__} | None" if is_optional else str(kind.__name__)


def all_specs() -> list[TaskSpec]:
    """Every declared task, by name, but for those whose messages have limits of their own."""
    return [
        spec_of(name)
        for name, task in sorted(registry.by_name.items())
        if task.definition.options.limit_by is None
    ]
